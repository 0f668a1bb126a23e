// SPDX-License-Identifier: MPL-2.0

//! The producer of a pool.

use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use xmem_core::cuda::Device;
use xmem_core::{
    AcquireError, Backing, Canceller, DType, Delivery, EventError, ProcessId, SlotSpec, Wait,
};

use crate::caps;
use crate::errors::{IntoPyErr, IntoPyResult, Kind, OF_THIS_PROCESS, not_pickled};
use crate::lock;
use crate::number::{count as number, count_or_none, counts, present_or_none};
use crate::pools::{pool_name, pool_stats};
use crate::publisher::Publisher;
use crate::signals::{self, Deadline};
use crate::slot::WriteSlot;
use crate::wanted::{self, Describer, What};
use crate::writable::WritableFrame;
use crate::{device, dtype, event};

/// Publishes frames in a pool.
///
/// pool: the name of the pool, or the path of its socket, which contains a slash.
/// caps: the caps of all frames, for GStreamer. Default: the caps follow from the format of each frame, or from its shape
/// and dtype.
/// framerate: frames per second, for the caps: 30, 29.97, (30000, 1001), or 0 for a variable rate.
/// lossless: wait for slow consumers, so that they miss no frame.
/// lossless_timeout: the time in seconds after which the producer disconnects a consumer that takes no frame. None:
/// never. (In xmemsink, 0 means never.)
/// history: the number of newest frames that are kept for consumers that join or are behind, at least 1. (In
/// xmemsink, 0 means automatic. Here it means 1.)
///
/// The other arguments are the properties of xmemsink.
#[pyclass(frozen, subclass, module = "xmem")]
#[derive(Debug)]
pub(crate) struct Producer {
    /// `None`: closed.
    publisher: Mutex<Option<Arc<Publisher>>>,
    pool: String,
    /// The process that made it.
    process: ProcessId,
    canceller: Canceller,
    lossless: bool,
    describer: Describer,
}

impl Producer {
    fn publisher(&self) -> PyResult<Arc<Publisher>> {
        // Some functions of the core return no error in a forked child.
        if !self.process.is_current() {
            return Err(AcquireError::Forked.into_py_err());
        }
        lock(&self.publisher)
            .clone()
            .ok_or_else(|| Kind::Closed.error("this producer is closed"))
    }
}

#[pymethods]
impl Producer {
    #[new]
    #[pyo3(signature = (pool, *, caps=None, framerate=None, lossless=false, lossless_timeout=None, history=4,
        min_slots=0, max_slots=256, max_bytes=0, max_consumers=256, max_held=8, backing="memfd", socket_mode=0o600,
        socket_group=None, allow_uids=Vec::new()))]
    #[allow(clippy::too_many_arguments)] // keyword arguments
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = pool_name)] pool: String,
        caps: Option<String>,
        framerate: Option<Bound<'_, PyAny>>,
        lossless: bool,
        lossless_timeout: Option<f64>,
        #[pyo3(from_py_with = number)] history: u32,
        #[pyo3(from_py_with = number)] min_slots: u32,
        #[pyo3(from_py_with = number)] max_slots: u32,
        #[pyo3(from_py_with = number)] max_bytes: u64,
        #[pyo3(from_py_with = number)] max_consumers: u32,
        #[pyo3(from_py_with = number)] max_held: u32,
        backing: &str,
        #[pyo3(from_py_with = number)] socket_mode: u32,
        socket_group: Option<String>,
        #[pyo3(from_py_with = counts)] allow_uids: Vec<u32>,
    ) -> PyResult<Self> {
        let framerate = caps::Framerate::parse(framerate.as_ref())?;
        let backing = match backing {
            "memfd" => Backing::Memfd,
            "posix-shm" => Backing::PosixShm,
            other => {
                return Err(PyValueError::new_err(format!(
                    "backing is {other:?}: it must be \"memfd\" or \"posix-shm\""
                )));
            }
        };
        check_mode(socket_mode)?;
        let builder = xmem_core::Producer::builder(&pool)
            .delivery(if lossless {
                Delivery::Lossless
            } else {
                Delivery::Live
            })
            .lossless_timeout(signals::lossless_timeout(lossless_timeout)?)
            .history(history.max(1))
            .min_slots(min_slots)
            .max_slots(max_slots)
            .max_bytes(max_bytes)
            .max_consumers(max_consumers)
            .max_held(max_held)
            .backing(backing)
            .socket_mode(socket_mode)
            .socket_group(socket_group)
            .allow_uids(allow_uids);
        let producer = py.detach(|| builder.build());
        let publisher = Publisher::new(producer.into_py_result()?);
        Ok(Self {
            publisher: Mutex::new(Some(Arc::new(publisher))),
            pool,
            process: ProcessId::current(),
            canceller: Canceller::new(),
            lossless,
            describer: Describer::new(caps, framerate),
        })
    }

    /// The pool, as passed to the constructor.
    #[getter]
    fn pool(&self) -> &str {
        &self.pool
    }

    /// Returns a frame to write, with a shape and dtype, or with a video format. The frame's content is undefined.
    ///
    /// In a live pool, `acquire` does not wait. In a lossless pool, it waits for a free slot and for consumers that are behind,
    /// so that `publish` does not have to wait.
    ///
    /// timeout: the longest wait in seconds (0: no wait). Timeout is raised after this time.
    /// room: the number of bytes to reserve in the slot for attachments, with their names and sizes. Unless `room` is 0, a
    /// frame that fills whole pages needs at least one more page.
    /// device: "cuda:N" for a frame on a CUDA device. Default: host memory.
    #[pyo3(signature = (shape=None, dtype=None, *, format=None, width=0, height=0, room=1024, timeout=None,
        device=None))]
    #[allow(clippy::too_many_arguments)] // keywords
    fn acquire(
        &self,
        py: Python<'_>,
        shape: Option<Bound<'_, PyAny>>,
        dtype: Option<Bound<'_, PyAny>>,
        format: Option<&str>,
        #[pyo3(from_py_with = number)] width: u32,
        #[pyo3(from_py_with = number)] height: u32,
        #[pyo3(from_py_with = number)] room: usize,
        timeout: Option<f64>,
        device: Option<&str>,
    ) -> PyResult<WritableFrame> {
        let what = match (shape, format) {
            (Some(_), None) if width != 0 || height != 0 => {
                return Err(PyValueError::new_err(
                    "pass width and height only with a format; a shape includes them, as in acquire((480, 640, 3), \"uint8\")",
                ));
            }
            (None, Some(format)) if dtype.is_some() => {
                return Err(PyValueError::new_err(format!(
                    "pass dtype only with a shape; format {format:?} implies it"
                )));
            }
            (Some(shape), None) => {
                let dtype = dtype.map_or(Ok(DType::U8), |dtype| dtype::parse(&dtype))?;
                What::Tensor(wanted::shape(&shape)?, dtype)
            }
            (None, Some(format)) => What::Video(format.to_owned(), width, height),
            _ => {
                return Err(PyValueError::new_err(
                    "pass either the shape and dtype of the frame, as in acquire((480, 640, 3), \"uint8\"), or its format, \
                     as in acquire(format=\"NV12\", width=640, height=480)",
                ));
            }
        };
        let deadline = Deadline::after(timeout)?;
        let device = device::parse(device)?;
        let wanted = self.describer.describe(what, device.is_some())?;
        let publisher = self.publisher()?;
        // A slot has at least one byte.
        let size = wanted.size.max(1);
        let device = device
            .map(|ordinal| py.detach(|| Device::new(ordinal)))
            .transpose()
            .into_py_result()?;
        // Before it acquires a slot, which other threads may need meanwhile.
        publisher.wait_for_room(py, deadline)?;
        // Without the interpreter, because a driver may allocate memory and wait for a thread that needs the interpreter.
        let mut slot = SlotSpec::new(size).attachments(room);
        if let Some(device) = &device {
            slot = slot.on(device);
        }
        let acquired = py.detach(|| publisher.acquire(slot.clone()));
        let lease = match acquired {
            Err(AcquireError::Exhausted { .. }) if self.lossless => {
                signals::wait_apart(py, deadline, |wait| publisher.acquire_wait(slot, wait))?
            }
            result => result,
        };
        let lease = lease.into_py_result()?;
        WritableFrame::new(publisher, WriteSlot::new(lease), wanted)
    }

    /// The caps of the last published frame.
    #[getter]
    fn caps(&self) -> PyResult<Option<String>> {
        Ok(self.publisher()?.sticky().text("caps").map(str::to_owned))
    }

    /// Publishes an event between two frames, for consumers with `events=True`. Returns its sequence.
    ///
    /// Pipelines receive it as a custom downstream event with this name, or as a gap if the name is "gap".
    ///
    /// name: letters, digits and /-_.:+.
    /// data: bytes for programs. Pipelines do not receive them.
    /// fields: the fields of the structure, as GStreamer writes them, such as "score=(double)0.9, label=(string)cat".
    /// pts: the presentation time, which a gap needs.
    /// timestamp: the presentation time on CLOCK_MONOTONIC. Default: now.
    /// timeout: in a lossless pool, the longest wait in seconds for consumers that are behind. Timeout is raised after this
    /// time.
    #[pyo3(signature = (name, data=Vec::new(), *, fields="", pts=None, duration=None, timestamp=None, timeout=None))]
    #[allow(clippy::too_many_arguments)] // keywords
    fn publish_event(
        &self,
        py: Python<'_>,
        name: &str,
        data: Vec<u8>,
        fields: &str,
        #[pyo3(from_py_with = count_or_none)] pts: Option<u64>,
        #[pyo3(from_py_with = count_or_none)] duration: Option<u64>,
        #[pyo3(from_py_with = present_or_none)] timestamp: Option<i64>,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let deadline = Deadline::after(timeout)?;
        let publisher = self.publisher()?;
        let meta = event::describe(name, data, fields, pts, duration, timestamp)?;
        publisher.wait_for_room(py, deadline)?;
        let published = match py.detach(|| publisher.publish_event(meta.clone())) {
            Err(EventError::Acquire(AcquireError::Exhausted { .. })) if self.lossless => {
                signals::wait_apart(py, deadline, |wait| {
                    publisher.publish_event_wait(meta, wait)
                })?
            }
            published => published,
        };
        published.into_py_result()
    }

    /// Marks the end of the stream after the last published frame.
    fn end_stream(&self) -> PyResult<()> {
        self.publisher()?.set_eos(true);
        Ok(())
    }

    /// Waits until `count` consumers are connected, at most `timeout` seconds.
    #[pyo3(signature = (timeout=None, *, count=1))]
    fn wait_for_consumer(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        #[pyo3(from_py_with = number)] count: usize,
    ) -> PyResult<()> {
        let publisher = self.publisher()?;
        let waited = signals::retry(py, Deadline::after(timeout)?, |slice| {
            publisher.wait_for_consumers(count, Wait::up_to(slice).unless(&self.canceller))
        })?;
        waited.ok_or_else(|| {
            Kind::Timeout.error(format!(
                "only {} of {count} consumer(s) of pool {:?} connected in {} s",
                publisher.num_consumers(),
                self.pool,
                signals::seconds(timeout.unwrap_or_default())
            ))
        })
    }

    /// The number of consumers.
    #[getter]
    fn num_consumers(&self) -> PyResult<usize> {
        Ok(self.publisher()?.num_consumers())
    }

    /// The statistics of the pool, as returned by `query`.
    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let publisher = self.publisher()?;
        let stats = py.detach(|| publisher.stats());
        pool_stats(py, &stats)
    }

    /// Closes the pool. Frames that consumers hold stay valid.
    fn close(&self, py: Python<'_>) {
        self.canceller.cancel();
        let publisher = lock(&self.publisher).take();
        if let Some(publisher) = publisher {
            py.detach(|| publisher.close());
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, py: Python<'_>, _args: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<()> {
        Err(not_pickled(slf, OF_THIS_PROCESS))
    }

    fn __repr__(&self) -> String {
        format!("<xmem.Producer of {:?}>", self.pool)
    }
}

/// An error for a mode that was probably written without 0o.
fn check_mode(mode: u32) -> PyResult<()> {
    if mode <= 0o777 {
        return Ok(());
    }
    let digits = mode.to_string();
    let meant = if digits.len() == 3 && digits.bytes().all(|digit| digit < b'8') {
        digits
    } else {
        "660".to_owned()
    };
    Err(PyValueError::new_err(format!(
        "socket_mode is {mode}, which is {mode:#o}, but the largest mode is 0o777: write 0o{meant}"
    )))
}
