const _: () = {
    #[automatically_derived]
    impl ::outbox_diesel::OutboxEvent for OrderCreated {
        fn aggregate_type(&self) -> &::outbox_diesel::__private::str {
            "order"
        }
        fn aggregate_id(
            &self,
        ) -> ::outbox_diesel::__private::Result<
            ::outbox_diesel::__private::Cow<'_, ::outbox_diesel::__private::str>,
            ::outbox_diesel::MissingAggregateId,
        > {
            ::outbox_diesel::__private::aggregate_id(
                &[("id", ::outbox_diesel::__private::Value::display(&self.id))],
            )
        }
        fn event_type(&self) -> &::outbox_diesel::__private::str {
            "order.created"
        }
        fn write_payload(
            &self,
            json: &mut ::outbox_diesel::__private::Vec<::outbox_diesel::__private::u8>,
        ) -> ::outbox_diesel::__private::Result<
            (),
            ::outbox_diesel::__private::serde_json::Error,
        > {
            ::outbox_diesel::__private::write_payload(json, self)
        }
    }
    #[automatically_derived]
    impl ::outbox_diesel::describe::DescribedEvent for OrderCreated {
        const EVENTS: &'static [::outbox_diesel::describe::Described] = &[
            ::outbox_diesel::describe::Described::Event(
                ::outbox_diesel::describe::EventDescription::new(
                    "order.created",
                    1i16,
                    "order",
                ),
            ),
        ];
    }
};
