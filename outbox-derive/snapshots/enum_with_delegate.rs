const _: () = {
    #[automatically_derived]
    impl ::outbox_diesel::OutboxEvent for OrderEvent {
        fn aggregate_type(&self) -> &::outbox_diesel::__private::str {
            match *self {
                Self::Created { .. } => "order",
                Self::Cancelled { .. } => "order",
                Self::Paid(ref inner) => {
                    ::outbox_diesel::OutboxEvent::aggregate_type(inner)
                }
            }
        }
        fn aggregate_id(
            &self,
        ) -> ::outbox_diesel::__private::Result<
            ::outbox_diesel::__private::Cow<'_, ::outbox_diesel::__private::str>,
            ::outbox_diesel::MissingAggregateId,
        > {
            match *self {
                Self::Created { id: ref field_id, .. } => {
                    ::outbox_diesel::__private::aggregate_id(
                        &[("id", ::outbox_diesel::__private::Value::display(field_id))],
                    )
                }
                Self::Cancelled { id: ref field_id, .. } => {
                    ::outbox_diesel::__private::aggregate_id(
                        &[("id", ::outbox_diesel::__private::Value::display(field_id))],
                    )
                }
                Self::Paid(ref inner) => {
                    ::outbox_diesel::OutboxEvent::aggregate_id(inner)
                }
            }
        }
        fn event_type(&self) -> &::outbox_diesel::__private::str {
            match *self {
                Self::Created { .. } => "order.created",
                Self::Cancelled { .. } => "order.cancelled",
                Self::Paid(ref inner) => ::outbox_diesel::OutboxEvent::event_type(inner),
            }
        }
        fn event_version(&self) -> ::outbox_diesel::__private::i16 {
            match *self {
                Self::Created { .. } => 1i16,
                Self::Cancelled { .. } => 1i16,
                Self::Paid(ref inner) => {
                    ::outbox_diesel::OutboxEvent::event_version(inner)
                }
            }
        }
        fn topic(&self) -> &::outbox_diesel::__private::str {
            match *self {
                Self::Created { .. } => "order",
                Self::Cancelled { .. } => "order",
                Self::Paid(ref inner) => ::outbox_diesel::OutboxEvent::topic(inner),
            }
        }
        fn dedup_key(
            &self,
        ) -> ::outbox_diesel::__private::Option<
            ::outbox_diesel::__private::Cow<'_, ::outbox_diesel::__private::str>,
        > {
            match *self {
                Self::Created { .. } => ::outbox_diesel::__private::Option::None,
                Self::Cancelled { .. } => ::outbox_diesel::__private::Option::None,
                Self::Paid(ref inner) => ::outbox_diesel::OutboxEvent::dedup_key(inner),
            }
        }
        fn headers(&self, headers: &mut ::outbox_diesel::Headers) {
            match *self {
                Self::Created { .. } => {
                    ::outbox_diesel::__private::header(
                        headers,
                        "shop",
                        ::outbox_diesel::__private::Value::display(&("main")),
                    );
                }
                Self::Cancelled { id: ref field_id, reason: ref field_reason, .. } => {
                    ::outbox_diesel::__private::header(
                        headers,
                        "shop",
                        ::outbox_diesel::__private::Value::display(&("main")),
                    );
                    ::outbox_diesel::__private::header(
                        headers,
                        "reason",
                        ::outbox_diesel::__private::Value::display(
                            &{
                                let (id, reason) = (field_id, field_reason);
                                reason.to_lowercase()
                            },
                        ),
                    );
                }
                Self::Paid(ref inner) => {
                    ::outbox_diesel::OutboxEvent::headers(inner, headers);
                    ::outbox_diesel::__private::header(
                        headers,
                        "shop",
                        ::outbox_diesel::__private::Value::display(&("main")),
                    );
                }
            }
        }
        fn payload_limit(&self) -> ::outbox_diesel::__private::usize {
            match *self {
                Self::Created { .. } => ::outbox_diesel::PAYLOAD_LIMIT,
                Self::Cancelled { .. } => ::outbox_diesel::PAYLOAD_LIMIT,
                Self::Paid(ref inner) => {
                    ::outbox_diesel::OutboxEvent::payload_limit(inner)
                }
            }
        }
        fn serialize_writers(&self) -> ::outbox_diesel::__private::bool {
            match *self {
                Self::Created { .. } => false,
                Self::Cancelled { .. } => false,
                Self::Paid(ref inner) => {
                    ::outbox_diesel::OutboxEvent::serialize_writers(inner)
                }
            }
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
    impl ::outbox_diesel::describe::DescribedEvent for OrderEvent {
        const EVENTS: &'static [::outbox_diesel::describe::Described] = &[
            ::outbox_diesel::describe::Described::Event(
                ::outbox_diesel::describe::EventDescription::new(
                        "order.created",
                        1i16,
                        "order",
                    )
                    .headers(&["shop"])
                    .variant("Created"),
            ),
            ::outbox_diesel::describe::Described::Event(
                ::outbox_diesel::describe::EventDescription::new(
                        "order.cancelled",
                        1i16,
                        "order",
                    )
                    .headers(&["shop", "reason"])
                    .variant("Cancelled"),
            ),
            ::outbox_diesel::describe::Described::Delegated {
                variant: "Paid",
                events: <OrderPaid as ::outbox_diesel::describe::DescribedEvent>::EVENTS,
                headers: &["shop"],
            },
        ];
    }
};
