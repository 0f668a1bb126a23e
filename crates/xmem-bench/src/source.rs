// SPDX-License-Identifier: MPL-2.0

//! A live source that costs nearly nothing: it writes the time into each frame, and a byte into each page if told to.

use gst::glib;
use gst::subclass::prelude::*;
use gst_base::prelude::*;

use crate::scenario::Scenario;

/// Size of a page of memory.
pub(crate) const PAGE: usize = 4096;

glib::wrapper! {
    pub struct Source(ObjectSubclass<imp::Source>) @extends gst_base::BaseSrc, gst::Element, gst::Object;
}

impl Source {
    pub(crate) fn new(scenario: Scenario, touch: bool, fps: u32) -> Self {
        let source: Self = glib::Object::builder().property("name", "source").build();
        source.set_live(true);
        source.set_format(gst::Format::Time);
        source.set_blocksize(scenario.frame_size() as u32);
        let settings = imp::Settings {
            scenario,
            touch,
            fps,
        };
        source.imp().settings.set(settings).expect("a new source");
        source
    }
}

mod imp {
    use std::sync::{LazyLock, Mutex, OnceLock};
    use std::thread;
    use std::time::{Duration, Instant};

    use gst::glib;
    use gst::subclass::prelude::*;
    use gst_base::prelude::*;
    use gst_base::subclass::prelude::*;
    use rustix::time::ClockId;

    use super::PAGE;
    use crate::figures::now;
    use crate::scenario::Scenario;
    use crate::side::STAMP;

    #[derive(Debug)]
    pub(super) struct Settings {
        pub(super) scenario: Scenario,
        pub(super) touch: bool,
        pub(super) fps: u32,
    }

    #[derive(Debug, Default)]
    pub struct Source {
        pub(super) settings: OnceLock<Settings>,
        /// When the next frame is due.
        due: Mutex<Option<Instant>>,
    }

    #[glib::object_subclass]
    impl ObjectSubclass for Source {
        const NAME: &'static str = "XmemBenchSource";
        type Type = super::Source;
        type ParentType = gst_base::BaseSrc;
    }

    impl ObjectImpl for Source {}
    impl GstObjectImpl for Source {}

    impl ElementImpl for Source {
        fn pad_templates() -> &'static [gst::PadTemplate] {
            static TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
                let any = gst::Caps::new_any();
                let (direction, presence) = (gst::PadDirection::Src, gst::PadPresence::Always);
                vec![
                    gst::PadTemplate::new("src", direction, presence, &any)
                        .expect("a valid template"),
                ]
            });
            &TEMPLATES
        }
    }

    impl BaseSrcImpl for Source {
        fn is_seekable(&self) -> bool {
            false
        }

        /// One choice: with any caps at all, BaseSrc would not negotiate, and ask for memory without naming caps.
        fn caps(&self, _filter: Option<&gst::Caps>) -> Option<gst::Caps> {
            self.settings.get()?.scenario.caps().parse().ok()
        }

        fn decide_allocation(
            &self,
            query: &mut gst::query::Allocation,
        ) -> Result<(), gst::LoggableError> {
            if !self
                .settings
                .get()
                .is_some_and(|settings| settings.scenario.is_foreign())
            {
                return self.parent_decide_allocation(query);
            }
            // Memory of our own, and used again, as a camera or a hardware decoder has it.
            while query.allocation_pools().len() > 0 {
                query.remove_nth_allocation_pool(0);
            }
            let (caps, _) = query.get_owned();
            let size = self.obj().blocksize();
            let pool = gst::BufferPool::new();
            let mut config = pool.config();
            config.set_params(caps.as_ref(), size, 4, 0);
            pool.set_config(config)
                .map_err(|error| gst::loggable_error!(gst::CAT_RUST, "{error}"))?;
            query.add_allocation_pool(Some(&pool), size, 4, 0);
            Ok(())
        }

        fn fill(
            &self,
            _offset: u64,
            _length: u32,
            buffer: &mut gst::BufferRef,
        ) -> Result<gst::FlowSuccess, gst::FlowError> {
            self.wait();
            let mut map = buffer.map_writable().map_err(|_| gst::FlowError::Error)?;
            if self.settings.get().is_some_and(|settings| settings.touch) {
                for page in map.chunks_mut(PAGE) {
                    page[0] = page[0].wrapping_add(1);
                }
            }
            let stamp = map
                .first_chunk_mut::<STAMP>()
                .ok_or(gst::FlowError::Error)?;
            *stamp = now(ClockId::Monotonic).to_le_bytes();
            Ok(gst::FlowSuccess::Ok)
        }
    }

    impl Source {
        fn wait(&self) {
            let mut due = self
                .due
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            let now = Instant::now();
            let this = due.unwrap_or(now);
            thread::sleep(this.saturating_duration_since(now));
            // Frames that could not be made in time are left out, as a camera does.
            let fps = self.settings.get().map_or(60, |settings| settings.fps);
            *due = Some(this.max(now) + Duration::from_secs(1) / fps);
        }
    }
}
