// SPDX-License-Identifier: MPL-2.0

/**
 * provider-xmemdeviceprovider:
 *
 * Lists the pools of the runtime directory that this user may join, as devices of the class `Video/Source`,
 * `Audio/Source` or `Source`, depending on their caps. Pools whose name is a path are not in that directory and are not
 * listed.
 *
 * The provider announces new and closed pools immediately. It notices a killed producer, or new caps, within about a
 * second.
 *
 * The properties of a device are `device.api` (`xmem`), `device.path` (of the socket), `xmem.pool`, `xmem.pid` (of the
 * producer, guint) and `xmem.delivery`.
 *
 * |[
 * gst-device-monitor-1.0 Video/Source
 * ]| Lists cameras and pools with video.
 *
 * Since: plugin-xmem-0.1
 */
use std::{
    collections::BTreeMap,
    sync::{LazyLock, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

use gst::{glib, prelude::*, subclass::prelude::*};
use xmem_core::Canceller;
use xmem_core::discovery::{PoolWatch, Watched};

use super::{
    CAT, XmemDevice,
    pools::{self, Pool},
};
use crate::lock;

/// The interval of scans. They are needed because a killed producer and new caps change no file.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct XmemDeviceProvider {
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Ends the thread.
    canceller: Canceller,
}

#[glib::object_subclass]
impl ObjectSubclass for XmemDeviceProvider {
    const NAME: &'static str = "GstXmemDeviceProvider";
    type Type = super::XmemDeviceProvider;
    type ParentType = gst::DeviceProvider;
}

impl ObjectImpl for XmemDeviceProvider {}

impl GstObjectImpl for XmemDeviceProvider {}

impl DeviceProviderImpl for XmemDeviceProvider {
    fn metadata() -> Option<&'static gst::subclass::DeviceProviderMetadata> {
        static METADATA: LazyLock<gst::subclass::DeviceProviderMetadata> = LazyLock::new(|| {
            gst::subclass::DeviceProviderMetadata::new(
                "Shared frame pools",
                // A monitor queries only the providers of the classes in its filter.
                "Video/Audio/Source",
                "Lists the pools that other processes have",
                "The xmem developers",
            )
        });
        Some(&*METADATA)
    }

    fn probe(&self) -> Vec<gst::Device> {
        pools::scan(&BTreeMap::new())
            .values()
            .map(|pool| XmemDevice::new(pool).upcast())
            .collect()
    }

    fn start(&self) -> Result<(), gst::LoggableError> {
        self.canceller.reset();
        let watch = PoolWatch::new(&self.canceller)
            .map_err(|error| gst::loggable_error!(CAT, "Cannot watch for pools: {error}"))?;
        // Existing pools must be listed when this returns.
        let mut devices = Devices::default();
        devices.update(&self.obj(), &self.canceller);
        let provider = self.obj().downgrade();
        let canceller = self.canceller.clone();
        let thread = thread::Builder::new()
            .name("xmem-devices".into())
            .spawn(move || follow(&provider, watch, devices, &canceller))
            .map_err(|error| gst::loggable_error!(CAT, "Cannot start a thread: {error}"))?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    fn stop(&self) {
        self.canceller.cancel();
        let thread = lock(&self.thread).take();
        // The last reference may be dropped on the thread itself, which cannot join itself.
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            gst::warning!(
                CAT,
                imp = self,
                "The thread that follows pools has panicked"
            );
        }
    }
}

impl Drop for XmemDeviceProvider {
    fn drop(&mut self) {
        self.canceller.cancel();
    }
}

/// Updates the list until cancelled.
fn follow(
    provider: &glib::WeakRef<super::XmemDeviceProvider>,
    mut watch: PoolWatch,
    mut devices: Devices,
    canceller: &Canceller,
) {
    while watch.wait(Some(SCAN_INTERVAL)) != Watched::Cancelled {
        let Some(provider) = provider.upgrade() else {
            return;
        };
        devices.update(&provider, canceller);
    }
}

/// The announced devices.
#[derive(Debug, Default)]
struct Devices {
    pools: BTreeMap<String, Pool>,
    devices: BTreeMap<String, XmemDevice>,
}

impl Devices {
    /// Announces the changes since the last call.
    fn update(&mut self, provider: &super::XmemDeviceProvider, canceller: &Canceller) {
        let pools = pools::scan(&self.pools);
        if canceller.is_cancelled() {
            return;
        }
        let before = std::mem::replace(&mut self.pools, pools);
        for (name, old) in &before {
            match self.pools.get(name) {
                Some(new) if new == old => {}
                // Another class is announced as a new device, because an application that watches one class gets no message of
                // a change to another.
                Some(new) if new.class() == old.class() => {
                    gst::debug!(CAT, obj = provider, "Changed: {new:?}");
                    let device = XmemDevice::new(new);
                    if let Some(old) = self.devices.insert(name.clone(), device.clone()) {
                        provider.device_changed(&device, &old);
                    }
                }
                new => {
                    gst::debug!(CAT, obj = provider, "Gone: {old:?}, now {new:?}");
                    if let Some(device) = self.devices.remove(name) {
                        provider.device_remove(&device);
                    }
                }
            }
        }
        for (name, pool) in &self.pools {
            if !self.devices.contains_key(name) {
                gst::debug!(CAT, obj = provider, "New: {pool:?}");
                let device = XmemDevice::new(pool);
                provider.device_add(&device);
                self.devices.insert(name.clone(), device);
            }
        }
    }
}
