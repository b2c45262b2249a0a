//! Which event types the derive gives by itself, and by `rename_all`.

use outbox_diesel::OutboxEvent;
use serde::Serialize;

fn payload(event: &impl OutboxEvent) -> String {
    let mut json = Vec::new();
    event.write_payload(&mut json).expect("serde can write it");
    String::from_utf8(json).expect("JSON is UTF-8")
}

#[test]
fn default_event_types_are_serdes_snake_case() {
    #[derive(Serialize, OutboxEvent)]
    #[serde(rename_all = "snake_case")]
    #[outbox(aggregate = "zoo", aggregate_id = { 1 })]
    #[allow(non_camel_case_types)]
    enum Name {
        OrderV2Created,
        HTTPFailed,
        Ipv4Seen,
        A1B2,
        Über,
        GrößeÄndern,
        r#Move,
        lower,
        Under_Score,
    }
    for event in [
        Name::OrderV2Created,
        Name::HTTPFailed,
        Name::Ipv4Seen,
        Name::A1B2,
        Name::Über,
        Name::GrößeÄndern,
        Name::Move,
        Name::lower,
        Name::Under_Score,
    ] {
        let serde = payload(&event);
        assert_eq!(event.event_type(), format!("zoo.{}", serde.trim_matches('"')));
    }
}

/// Serde is asked what it makes of each name; outbox, with another aggregate, must agree.
#[test]
fn rename_all_is_serdes_for_every_style() {
    macro_rules! agree {
        ($style:literal, $($name:ident),*) => {{
            #[derive(Serialize, OutboxEvent)]
            #[serde(rename_all = $style)]
            #[outbox(aggregate = "zoo", aggregate_id = { 1 }, rename_all = $style)]
            #[allow(non_camel_case_types)]
            enum Name { $($name),* }
            $(
                let serde = payload(&Name::$name);
                assert_eq!(
                    Name::$name.event_type(),
                    format!("zoo.{}", serde.trim_matches('"')),
                );
            )*
        }};
    }
    macro_rules! all {
        ($($style:literal)*) => {
            $(agree!($style, OrderV2Created, HTTPFailed, Ipv4Seen, A1B2, GrößeÄndern, r#Move, lower, Under_Score);)*
        };
    }
    all!("lowercase" "UPPERCASE" "PascalCase" "camelCase" "snake_case");
    all!("SCREAMING_SNAKE_CASE" "kebab-case" "SCREAMING-KEBAB-CASE");
    agree!("kebab-case", Über);
}

#[test]
fn rename_all_styles_what_happened_and_leaves_the_aggregate() {
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "purchase_order", aggregate_id = { 1 }, rename_all = "camelCase")]
    struct PurchaseOrderPaidInFull;
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "order", aggregate_id = { 1 }, rename_all = "SCREAMING-KEBAB-CASE")]
    enum OrderEvent {
        OrderSentBack,
        #[outbox(event_type = "order.own")]
        Own,
    }
    assert_eq!(PurchaseOrderPaidInFull.event_type(), "purchase_order.paidInFull");
    assert_eq!(OrderEvent::OrderSentBack.event_type(), "order.SENT-BACK");
    assert_eq!(OrderEvent::Own.event_type(), "order.own");
}
