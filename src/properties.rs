// SPDX-License-Identifier: MPL-2.0

//! The properties of an element as a table: the GObject specification of each, and the setting that it represents.

use std::ffi::OsString;
use std::path::Path;

use gst::{glib, prelude::*};

use crate::bytes;

/// A type of settings.
pub(crate) trait Setting: Clone {
    type Builder<'a>
    where
        Self: 'a;

    /// Starts the specification of a property.
    fn spec<'a>(name: &'a str, default: &'a Self) -> Self::Builder<'a>;

    fn to_value(&self) -> glib::Value;

    /// `None`: the value is NULL, which selects the default.
    fn of_value(value: &glib::Value) -> Option<Self>;
}

/// Types of settings for which GObject has a type.
macro_rules! plain {
    ($($type:ty: $builder:ty, |$name:ident, $default:ident| $spec:expr;)*) => {
        $(impl $crate::properties::Setting for $type {
            type Builder<'a> = $builder;

            fn spec<'a>($name: &'a str, $default: &'a Self) -> Self::Builder<'a> {
                $spec
            }

            fn to_value(&self) -> gst::glib::Value {
                gst::glib::value::ToValue::to_value(self)
            }

            fn of_value(value: &gst::glib::Value) -> Option<Self> {
                value.get().ok()
            }
        })*
    };
}

/// Declares enums for settings: the name of the type, and the nick and description of each value. The first value is the
/// default.
macro_rules! choices {
    ($(
        $(#[$about:meta])* $type:ident = $gtype:tt {
            $first:ident = $first_nick:tt, $first_text:tt;
            $($choice:ident = $nick:tt, $text:tt;)*
        }
    )*) => {
        $(
            $(#[$about])*
            #[derive(
                Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, gst::glib::Enum,
            )]
            #[repr(u32)]
            #[enum_type(name = $gtype)]
            pub enum $type {
                #[doc = $first_text]
                #[default]
                #[enum_value(name = $first_text, nick = $first_nick)]
                $first,
                $(#[doc = $text]
                #[enum_value(name = $text, nick = $nick)]
                $choice,)*
            }

            $crate::properties::plain! {
                $type: gst::glib::ParamSpecEnumBuilder<'a, $type>,
                    |name, default| gst::glib::ParamSpecEnum::builder_with_default(name, *default);
            }
        )*
    };
}

plain! {
    bool: glib::ParamSpecBooleanBuilder<'a>,
        |name, default| glib::ParamSpecBoolean::builder(name).default_value(*default);
    i32: glib::ParamSpecIntBuilder<'a>,
        |name, default| glib::ParamSpecInt::builder(name).default_value(*default);
    u32: glib::ParamSpecUIntBuilder<'a>,
        |name, default| glib::ParamSpecUInt::builder(name).default_value(*default);
    u64: glib::ParamSpecUInt64Builder<'a>,
        |name, default| glib::ParamSpecUInt64::builder(name).default_value(*default);
    gst::Fraction: gst::param_spec::ParamSpecFractionBuilder<'a>,
        |name, default| gst::ParamSpecFraction::builder(name).default_value(*default);
}

/// A path with any bytes.
impl Setting for OsString {
    type Builder<'a> = glib::ParamSpecStringBuilder<'a>;

    fn spec<'a>(name: &'a str, default: &'a Self) -> Self::Builder<'a> {
        glib::ParamSpecString::builder(name).default_value(default.to_str())
    }

    fn to_value(&self) -> glib::Value {
        Path::new(self).to_value()
    }

    fn of_value(value: &glib::Value) -> Option<Self> {
        bytes::path(value)
    }
}

impl Setting for String {
    type Builder<'a> = glib::ParamSpecStringBuilder<'a>;

    fn spec<'a>(name: &'a str, default: &'a Self) -> Self::Builder<'a> {
        glib::ParamSpecString::builder(name).default_value(Some(default.as_str()))
    }

    fn to_value(&self) -> glib::Value {
        ToValue::to_value(self)
    }

    fn of_value(value: &glib::Value) -> Option<Self> {
        bytes::text(value)
    }
}

impl Setting for Option<String> {
    type Builder<'a> = glib::ParamSpecStringBuilder<'a>;

    fn spec<'a>(name: &'a str, default: &'a Self) -> Self::Builder<'a> {
        glib::ParamSpecString::builder(name).default_value(default.as_deref())
    }

    fn to_value(&self) -> glib::Value {
        ToValue::to_value(self)
    }

    fn of_value(value: &glib::Value) -> Option<Self> {
        Some(bytes::text(value))
    }
}

/// Never `GST_CLOCK_TIME_NONE`.
impl Setting for gst::ClockTime {
    type Builder<'a> = glib::ParamSpecUInt64Builder<'a>;

    fn spec<'a>(name: &'a str, default: &'a Self) -> Self::Builder<'a> {
        glib::ParamSpecUInt64::builder(name).default_value(default.nseconds())
    }

    fn to_value(&self) -> glib::Value {
        ToValue::to_value(&self.nseconds())
    }

    fn of_value(value: &glib::Value) -> Option<Self> {
        u64::of_value(value).map(Self::from_nseconds)
    }
}

type Get<S> = fn(&S) -> glib::Value;
type Set<S> = fn(&mut S, &glib::Value);

/// A row of the table.
pub(crate) struct Property<S> {
    pub(crate) spec: glib::ParamSpec,
    pub(crate) get: Get<S>,
    pub(crate) set: Set<S>,
}

/// All properties of an element. GObject numbers them from 1 in this order.
pub(crate) struct Properties<S> {
    specs: Vec<glib::ParamSpec>,
    access: Vec<(Get<S>, Set<S>)>,
}

impl<S> Properties<S> {
    /// `computed`: properties whose values the element computes.
    pub(crate) fn new(rows: Vec<Property<S>>, computed: Vec<glib::ParamSpec>) -> Self {
        let (mut specs, access): (Vec<_>, _) = rows
            .into_iter()
            .map(|row| (row.spec, (row.get, row.set)))
            .unzip();
        specs.extend(computed);
        Self { specs, access }
    }

    /// Declares that the enums of the settings are API of the plugin.
    pub(crate) fn mark_enums(&self) {
        let types = self.specs.iter().map(glib::ParamSpec::value_type);
        for enumeration in types.filter(|it| it.is_a(glib::Type::ENUM)) {
            enumeration.mark_as_plugin_api(gst::PluginAPIFlags::empty());
        }
    }

    /// The GObject specifications.
    pub(crate) fn specs(&self) -> &[glib::ParamSpec] {
        &self.specs
    }

    /// The value of a setting. `None`: the element computes it.
    pub(crate) fn get(&self, number: usize, settings: &mut S) -> Option<glib::Value> {
        self.access(number).map(|(get, _)| get(settings))
    }

    /// Sets the value of a setting.
    pub(crate) fn set(&self, number: usize, settings: &mut S, value: &glib::Value) {
        if let Some((_, set)) = self.access(number) {
            set(settings, value);
        }
    }

    fn access(&self, number: usize) -> Option<&(Get<S>, Set<S>)> {
        self.access.get(number.checked_sub(1)?)
    }
}

/// Declares the struct `Settings`, its defaults, and the table `PROPERTIES`. A row has the field, its type and default; the
/// name, nick and description of the property; and optional calls on the builder of its specification. The properties that are
/// listed first are computed by the element.
macro_rules! settings {
    (
        computed { $($computed:expr;)* }
        $($(#[$about:meta])* $field:ident: $type:ty = $default:expr,
            $name:expr, $nick:literal, $blurb:expr $(, $call:ident($($argument:expr)?))*;)*
    ) => {
        #[derive(Debug, Clone)]
        pub(super) struct Settings {
            $($(#[$about])* pub(super) $field: $type,)*
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        pub(super) static PROPERTIES: std::sync::LazyLock<$crate::properties::Properties<Settings>> =
            std::sync::LazyLock::new(|| {
                use $crate::properties::{Properties, Property, Setting};
                let default = Settings::default();
                Properties::new(vec![
                    $(Property {
                        spec: <$type as Setting>::spec($name, &default.$field)
                            .nick($nick)
                            .blurb($blurb)
                            $(.$call($($argument)?))*
                            .build(),
                        get: |settings| Setting::to_value(&settings.$field),
                        set: |settings, value| {
                            settings.$field = Setting::of_value(value)
                                .unwrap_or_else(|| Settings::default().$field);
                        },
                    },)*
                ], vec![$($computed,)*])
            });
    };
}

pub(crate) use {choices, plain, settings};
