// SPDX-License-Identifier: MPL-2.0

//! The properties of an element as one table: how GObject describes each, and which setting it is.

use std::ffi::OsString;
use std::path::Path;

use gst::glib::{self, prelude::*, value::FromValue};

use crate::bytes;

type Get<S> = dyn Fn(&mut S) -> glib::Value + Send + Sync;
type Set<S> = dyn Fn(&mut S, &glib::Value) + Send + Sync;

/// Reads and writes one property of the settings `S`.
struct Access<S> {
    get: Box<Get<S>>,
    set: Box<Set<S>>,
}

/// A row of the table.
pub(crate) struct Property<S> {
    spec: glib::ParamSpec,
    /// `None`: the element computes the value.
    access: Option<Access<S>>,
}

impl<S: Default + 'static> Property<S> {
    /// A property that is one field of the settings.
    pub(crate) fn new<T>(spec: glib::ParamSpec, field: fn(&mut S) -> &mut T) -> Self
    where
        T: ToValue + for<'a> FromValue<'a> + 'static,
    {
        Self::custom(
            spec,
            move |settings| field(settings).to_value(),
            move |settings, value| {
                // GObject has checked the type.
                if let Ok(value) = value.get() {
                    *field(settings) = value;
                }
            },
        )
    }

    /// A property that is a path, with any bytes. NULL is the default.
    pub(crate) fn path(spec: glib::ParamSpec, field: fn(&mut S) -> &mut OsString) -> Self {
        Self::custom(
            spec,
            move |settings| Path::new(field(settings)).to_value(),
            move |settings, value| {
                let path = bytes::path(value);
                *field(settings) = path.unwrap_or_else(|| field(&mut S::default()).clone());
            },
        )
    }

    /// A property that is text. NULL is the default.
    pub(crate) fn text(spec: glib::ParamSpec, field: fn(&mut S) -> &mut String) -> Self {
        Self::custom(
            spec,
            move |settings| field(settings).to_value(),
            move |settings, value| {
                let text = bytes::text(value);
                *field(settings) = text.unwrap_or_else(|| field(&mut S::default()).clone());
            },
        )
    }

    /// A property whose setting has another form.
    pub(crate) fn custom(
        spec: glib::ParamSpec,
        get: impl Fn(&mut S) -> glib::Value + Send + Sync + 'static,
        set: impl Fn(&mut S, &glib::Value) + Send + Sync + 'static,
    ) -> Self {
        let access = Some(Access {
            get: Box::new(get),
            set: Box::new(set),
        });
        Self { spec, access }
    }

    /// A property that the element computes.
    pub(crate) fn computed(spec: glib::ParamSpec) -> Self {
        Self { spec, access: None }
    }
}

/// All properties of an element. GObject numbers them from 1, in their order.
pub(crate) struct Properties<S> {
    specs: Vec<glib::ParamSpec>,
    access: Vec<Option<Access<S>>>,
}

impl<S> Properties<S> {
    pub(crate) fn new(rows: Vec<Property<S>>) -> Self {
        let (specs, access) = rows.into_iter().map(|row| (row.spec, row.access)).unzip();
        Self { specs, access }
    }

    /// Their GObject specifications.
    pub(crate) fn specs(&self) -> &[glib::ParamSpec] {
        &self.specs
    }

    /// The value of a setting. `None`: the element computes it.
    pub(crate) fn get(&self, number: usize, settings: &mut S) -> Option<glib::Value> {
        self.access(number).map(|access| (access.get)(settings))
    }

    /// Takes over the value of a setting.
    pub(crate) fn set(&self, number: usize, settings: &mut S, value: &glib::Value) {
        if let Some(access) = self.access(number) {
            (access.set)(settings, value);
        }
    }

    fn access(&self, number: usize) -> Option<&Access<S>> {
        self.access.get(number.checked_sub(1)?)?.as_ref()
    }
}
