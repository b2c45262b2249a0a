//! Settle: acknowledges what was handled, and buries what never will be.

use std::collections::VecDeque;
use std::time::SystemTime;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;

use super::entry::Fields;
use super::group::Group;
use super::lanes::{Lanes, Place};
use super::worker::Stream;

/// What is to be said to Redis, and is said again until Redis has heard it.
#[derive(Default)]
pub(super) struct Settling {
    acknowledged: Vec<Place>,
    /// In the order in which they came to their end.
    buried: VecDeque<Buried>,
}

struct Buried {
    place: Place,
    error: String,
    tries: u32,
    fields: Fields,
}

impl Settling {
    pub(super) fn acknowledge(&mut self, place: Place) {
        self.acknowledged.push(place);
    }

    pub(super) fn bury(&mut self, place: Place, error: String, tries: u32, fields: Fields) {
        self.buried.push_back(Buried { place, error, tries, fields });
    }

    pub(super) async fn flush(
        &mut self,
        conn: &mut MultiplexedConnection,
        group: &Group,
        streams: &[Stream],
        lanes: &mut Lanes,
    ) -> RedisResult<()> {
        if !self.acknowledged.is_empty() {
            let of = |number| {
                let own = self.acknowledged.iter().filter(move |place| place.0 == number);
                own.map(|place| place.1).collect::<Vec<_>>()
            };
            let numbered = streams.iter().enumerate();
            group
                .acknowledge(conn, numbered.map(|(number, stream)| (&*stream.name, of(number))))
                .await?;
            for place in self.acknowledged.drain(..) {
                lanes.release(place);
            }
        }
        while let Some(buried) = self.buried.front() {
            let (number, id) = buried.place;
            let stream = &streams[number];
            let (id_text, tries) = (id.to_string(), buried.tries.to_string());
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let now = since.map_or(0, |since| since.as_millis()).to_string();
            let why: [(&str, &str); 6] = [
                ("dead_stream", &stream.name),
                ("dead_entry", &id_text),
                ("dead_group", &group.name),
                ("dead_error", &buried.error),
                ("dead_tries", &tries),
                ("dead_at_ms", &now),
            ];
            let why = why.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
            let fields = buried.fields.iter().map(|(name, value)| (&name[..], &value[..]));
            group.bury(conn, (&stream.name, &stream.dead), id, fields.chain(why)).await?;
            lanes.release(buried.place);
            self.buried.pop_front();
        }
        Ok(())
    }
}
