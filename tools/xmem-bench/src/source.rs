// SPDX-License-Identifier: MPL-2.0

//! A live source with little overhead. It writes the time into each frame, and with `touch` also a byte into each page.

use std::sync::Mutex;

use gst::glib;
use gst::subclass::prelude::*;
use gst_base::prelude::*;

use crate::frames::Frames;
use crate::pace::Pace;

glib::wrapper! {
    pub struct Source(ObjectSubclass<imp::Source>) @extends gst_base::BaseSrc, gst::Element, gst::Object;
}

impl Source {
    pub(crate) fn new(frames: Frames, touch: bool, fps: u32) -> Self {
        let source: Self = glib::Object::builder().property("name", "source").build();
        source.set_live(true);
        source.set_format(gst::Format::Time);
        // Frames have timestamps, as those of a camera.
        source.set_do_timestamp(true);
        source.set_blocksize(frames.size() as u32);
        let settings = imp::Settings {
            frames,
            touch,
            pace: Mutex::new(Pace::new(fps)),
        };
        source.imp().settings.set(settings).expect("a new source");
        source
    }
}

mod imp {
    use std::sync::{LazyLock, Mutex, OnceLock};

    use gst::glib;
    use gst::subclass::prelude::*;
    use gst_base::prelude::*;
    use gst_base::subclass::prelude::*;

    use crate::frames::Frames;
    use crate::pace::Pace;
    use crate::stamp;

    #[derive(Debug)]
    pub(super) struct Settings {
        pub(super) frames: Frames,
        pub(super) touch: bool,
        pub(super) pace: Mutex<Pace>,
    }

    #[derive(Debug, Default)]
    pub struct Source {
        pub(super) settings: OnceLock<Settings>,
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

        /// Fixed caps. With `ANY`, BaseSrc would not negotiate, and the allocation query would have no caps.
        fn caps(&self, _filter: Option<&gst::Caps>) -> Option<gst::Caps> {
            self.settings.get()?.frames.caps().parse().ok()
        }

        /// Uses the sink's buffer pool, or a new pool with the sink's allocator, as GStreamer's own sources and decoders do.
        /// Buffers are reused, as those of a camera or a decoder.
        fn decide_allocation(
            &self,
            query: &mut gst::query::Allocation,
        ) -> Result<(), gst::LoggableError> {
            let is_foreign = self
                .settings
                .get()
                .is_some_and(|settings| settings.frames.is_foreign());
            let has_pool = matches!(query.allocation_pools().next(), Some((Some(_), ..)));
            if !is_foreign && has_pool {
                return self.parent_decide_allocation(query);
            }
            while query.allocation_pools().next().is_some() {
                query.remove_nth_allocation_pool(0);
            }
            let allocator = match query.allocation_params().next() {
                Some((allocator, params)) if !is_foreign => Some((allocator, params)),
                _ => None,
            };
            let (caps, _) = query.get_owned();
            let size = self.obj().blocksize();
            let pool = gst::BufferPool::new();
            let mut config = pool.config();
            config.set_params(caps.as_ref(), size, 4, 0);
            if let Some((allocator, params)) = &allocator {
                config.set_allocator(allocator.as_ref(), Some(params));
            }
            pool.set_config(config)
                .map_err(|error| gst::loggable_error!(gst::CAT_RUST, "{error}"))?;
            query.add_allocation_pool(Some(&pool), size, 4, 0);
            if is_foreign {
                return Ok(());
            }
            self.parent_decide_allocation(query)
        }

        fn fill(
            &self,
            _offset: u64,
            _length: u32,
            buffer: &mut gst::BufferRef,
        ) -> Result<gst::FlowSuccess, gst::FlowError> {
            let settings = self.settings.get().ok_or(gst::FlowError::Error)?;
            let mut pace = settings
                .pace
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            pace.wait(false);
            let mut map = buffer.map_writable().map_err(|_| gst::FlowError::Error)?;
            stamp::write(&mut map, settings.touch).map_err(|_| gst::FlowError::Error)?;
            Ok(gst::FlowSuccess::Ok)
        }
    }
}
