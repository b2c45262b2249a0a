const _: () = {
    #[automatically_derived]
    impl<T> platform::outbox::OutboxEvent for OrderPaid<T>
    where
        T: Clone,
        Self: platform::outbox::__private::serde::Serialize,
        T: platform::outbox::__private::Display,
        T: platform::outbox::__private::Display,
    {
        fn aggregate_type(&self) -> &platform::outbox::__private::str {
            "order"
        }
        fn aggregate_id(
            &self,
        ) -> platform::outbox::__private::Result<
            platform::outbox::__private::Cow<'_, platform::outbox::__private::str>,
            platform::outbox::MissingAggregateId,
        > {
            platform::outbox::__private::aggregate_id(
                &[
                    (
                        "tenant",
                        platform::outbox::__private::Value::display(&self.tenant),
                    ),
                    ("id", platform::outbox::__private::Value::display(&self.id)),
                ],
            )
        }
        fn event_type(&self) -> &platform::outbox::__private::str {
            "order.paid"
        }
        fn event_version(&self) -> platform::outbox::__private::i16 {
            2i16
        }
        fn topic(&self) -> &platform::outbox::__private::str {
            "orders"
        }
        fn dedup_key(
            &self,
        ) -> platform::outbox::__private::Option<
            platform::outbox::__private::Cow<'_, platform::outbox::__private::str>,
        > {
            platform::outbox::__private::dedup_key(
                &[platform::outbox::__private::Value::display(&self.request)],
            )
        }
        fn headers(&self, headers: &mut platform::outbox::Headers) {
            platform::outbox::__private::header(
                headers,
                "source",
                platform::outbox::__private::Value::display(&(self.source())),
            );
            platform::outbox::__private::header(
                headers,
                "id",
                platform::outbox::__private::Value::display(&self.id),
            );
        }
        fn payload_limit(&self) -> platform::outbox::__private::usize {
            const { 4 * 1024 }
        }
        fn write_payload(
            &self,
            json: &mut platform::outbox::__private::Vec<platform::outbox::__private::u8>,
        ) -> platform::outbox::__private::Result<
            (),
            platform::outbox::__private::serde_json::Error,
        > {
            platform::outbox::__private::write_payload(json, self)
        }
    }
    #[automatically_derived]
    impl<T> platform::outbox::describe::DescribedEvent for OrderPaid<T>
    where
        T: Clone,
    {
        const EVENTS: &'static [platform::outbox::describe::Described] = &[
            platform::outbox::describe::Described::Event(
                platform::outbox::describe::EventDescription::new(
                        "order.paid",
                        2i16,
                        "order",
                    )
                    .topic("orders")
                    .headers(&["source", "id"]),
            ),
        ];
    }
};
