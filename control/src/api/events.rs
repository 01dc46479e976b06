//! Numbered events.

use events::Event;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// Lost events: the reader was too slow, or the ring no longer retains the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lost {
    /// Number of lost events.
    pub lost: u64,
    /// Sequence number of the next event in the stream.
    pub next: u64,
}

/// A line of the event stream.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are events, and a box would be an allocation for each"
)]
pub enum EventLine {
    /// An event as in the run's own output, with the sequence number.
    Event {
        /// Sequence number: 1 for the first event of the run, and increased by 1 with each event.
        seq: u64,
        /// The event.
        #[serde(flatten)]
        event: Event,
    },
    /// Events are missing here.
    Lost(Lost),
}

/// The OpenAPI schema of a server-sent event of the stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerSentEvent;

impl PartialSchema for ServerSentEvent {
    fn schema() -> RefOr<Schema> {
        let text = || ObjectBuilder::new().schema_type(Type::String);
        let event = text()
            .enum_values(Some(["hit", "return", "note", "summary", "lost"]))
            .description(Some(
                "The type of the event; `lost` where events are missing.",
            ));
        let id = text()
            .pattern(Some("^[0-9]+$"))
            .description(Some("The sequence number; absent with `lost`."));
        let data = text()
            .content_media_type("application/json")
            .description(Some("An `EventLine`."));
        ObjectBuilder::new()
            .property("event", event)
            .property("id", id)
            .property("data", data)
            .required("event")
            .required("data")
            .description(Some("A server-sent event."))
            .into()
    }
}

impl ToSchema for ServerSentEvent {}

impl<'de> Deserialize<'de> for EventLine {
    /// Not derived: for an invalid event, a derived untagged enum would only report that no variant matches.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = serde_json::Map::deserialize(deserializer)?;
        if value.contains_key("lost") {
            let lost = serde_json::from_value(value.into()).map_err(D::Error::custom)?;
            return Ok(Self::Lost(lost));
        }
        let seq = value.remove("seq").and_then(|seq| seq.as_u64());
        let seq = seq.ok_or_else(|| D::Error::missing_field("seq"))?;
        let event = serde_json::from_value(value.into()).map_err(D::Error::custom)?;
        Ok(Self::Event { seq, event })
    }
}

#[cfg(test)]
mod tests {
    use events::Note;

    use super::*;

    #[test]
    fn lines_come_back_as_they_were() {
        let event = Event::Note(Note {
            ts_ns: 5,
            probe: None,
            text: "x".to_owned(),
        });
        let line = EventLine::Event { seq: 9, event };
        let json = serde_json::to_string(&line).expect("json");
        assert_eq!(json, r#"{"seq":9,"type":"note","ts_ns":5,"text":"x"}"#);
        assert_eq!(
            serde_json::from_str::<EventLine>(&json).expect("json"),
            line
        );

        let line = EventLine::Lost(Lost { lost: 3, next: 7 });
        let json = serde_json::to_string(&line).expect("json");
        assert_eq!(json, r#"{"lost":3,"next":7}"#);
        assert_eq!(
            serde_json::from_str::<EventLine>(&json).expect("json"),
            line
        );
        let error = serde_json::from_str::<EventLine>("{}").expect_err("nothing");
        assert!(error.to_string().contains("seq"), "{error}");
    }
}
