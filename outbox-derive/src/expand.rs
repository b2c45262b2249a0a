//! The implementation, and its stand-in when there were mistakes.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{DeriveInput, Generics, Path};

use crate::argument::Errors;
use crate::attr::{self, Options};
use crate::body::Methods;
use crate::bounds;
use crate::case::Case;
use crate::check::Event;
use crate::describe;
use crate::value::{local, source};

/// ```text
/// const _: () = {
///     #[automatically_derived]
///     impl outbox_diesel::OutboxEvent for OrderCreated { .. }
///     #[automatically_derived]
///     impl outbox_diesel::describe::DescribedEvent for OrderCreated { .. }
/// };
/// ```
///
/// Locals have mixed-site spans, so that the user's names cannot meet them; `self` has not, since
/// the user's expressions use it.
pub(crate) fn event(event: &Event<'_>) -> TokenStream {
    let written = event.written;
    let krate = krate(written.options.krate.as_ref());
    let private = quote!(#krate::__private);
    let methods = Methods { event, krate: &krate };
    let own = Span::mixed_site();
    let (headers, json) = (local("headers", own), local("json", own));

    let aggregate_type = methods.constant("aggregate_type", |case| case.aggregate.clone());
    let aggregate_id = methods.each(
        "aggregate_id",
        |case| &case.aggregate_id,
        |case, values| {
            let sources = case.aggregate_id.iter().map(|&part| source(part, &krate));
            quote!(#private::aggregate_id(&[#((#sources, #values)),*]))
        },
    );
    let event_type = methods.constant("event_type", |case| case.event_type.clone());
    let event_version = methods.some(|case| case.version != 1).then(|| {
        let body = methods.constant("event_version", |case| case.version);
        quote! {
            fn event_version(&self) -> #private::i16 { #body }
        }
    });
    let topic = methods.some(|case| case.topic.is_some()).then(|| {
        let topic = |case: &Case<'_>| case.topic.as_ref().unwrap_or(&case.aggregate).clone();
        let body = methods.constant("topic", topic);
        quote! {
            fn topic(&self) -> &#private::str { #body }
        }
    });
    let dedup_key = methods.some(|case| !case.dedup_key.is_empty()).then(|| {
        let body = methods.each(
            "dedup_key",
            |case| &case.dedup_key,
            |_, values| {
                if values.is_empty() {
                    return quote!(#private::Option::None);
                }
                quote!(#private::dedup_key(&[#(#values),*]))
            },
        );
        quote! {
            fn dedup_key(&self) -> #private::Option<#private::Cow<'_, #private::str>> { #body }
        }
    });
    let set_headers = methods.some(|case| !case.headers.is_empty()).then(|| {
        let body = methods.headers(&headers);
        quote! {
            fn headers(&self, #headers: &mut #krate::Headers) { #body }
        }
    });
    let payload_limit = methods.some(|case| case.payload_limit.is_some()).then(|| {
        let body = methods.constant("payload_limit", |case| {
            let library = || quote!(#krate::PAYLOAD_LIMIT);
            case.payload_limit.map_or_else(library, |limit| {
                // Constant, so that it cannot read the event.
                quote_spanned!(limit.span()=> const { #limit })
            })
        });
        quote! {
            fn payload_limit(&self) -> #private::usize { #body }
        }
    });
    let serialize_writers = methods.some(|case| case.serialize_writers).then(|| {
        let body = methods.constant("serialize_writers", |case| case.serialize_writers);
        quote! {
            fn serialize_writers(&self) -> #private::bool { #body }
        }
    });
    // On the type's name, where a missing `Serialize` is to be mended.
    let value = quote_spanned!(written.original.ident.span().resolved_at(Span::call_site())=> self);
    let items = quote! {
        fn aggregate_type(&self) -> &#private::str { #aggregate_type }
        fn aggregate_id(
            &self,
        ) -> #private::Result<#private::Cow<'_, #private::str>, #krate::MissingAggregateId> {
            #aggregate_id
        }
        fn event_type(&self) -> &#private::str { #event_type }
        #event_version
        #topic
        #dedup_key
        #set_headers
        #payload_limit
        #serialize_writers
        fn write_payload(
            &self,
            #json: &mut #private::Vec<#private::u8>,
        ) -> #private::Result<(), #private::serde_json::Error> {
            #private::write_payload(#json, #value)
        }
    };
    let described = describe::items(event, &krate);
    let generics = bounds::described(event, &krate);
    implementations(
        written.original,
        (quote!(#krate::OutboxEvent), &bounds::bounded(event, &krate), items),
        (quote!(#krate::describe::DescribedEvent), &generics, described),
    )
}

/// The mistakes, and an implementation that spares the user further errors about its absence.
pub(crate) fn fallback(input: &DeriveInput, mistakes: &syn::Error) -> TokenStream {
    let options = Options::parse(&input.attrs, attr::Place::Struct, &mut Errors::default());
    let krate = krate(options.krate.as_ref());
    let private = quote!(#krate::__private);
    let items = quote! {
        fn aggregate_type(&self) -> &#private::str { loop {} }
        fn aggregate_id(
            &self,
        ) -> #private::Result<#private::Cow<'_, #private::str>, #krate::MissingAggregateId> {
            loop {}
        }
        fn event_type(&self) -> &#private::str { loop {} }
        fn write_payload(
            &self,
            _: &mut #private::Vec<#private::u8>,
        ) -> #private::Result<(), #private::serde_json::Error> {
            loop {}
        }
    };
    let mistakes = mistakes.to_compile_error();
    let described = quote!(const EVENTS: &'static [#krate::describe::Described] = &[];);
    let stand_in = implementations(
        input,
        (quote!(#krate::OutboxEvent), &input.generics, items),
        (quote!(#krate::describe::DescribedEvent), &input.generics, described),
    );
    quote!(#mistakes #stand_in)
}

/// A trait, the generics of its implementation, and the items.
type Implementation<'a> = (TokenStream, &'a Generics, TokenStream);

fn implementations(
    input: &DeriveInput,
    event: Implementation<'_>,
    described: Implementation<'_>,
) -> TokenStream {
    let ident = &input.ident;
    // The type's users are to be warned, not its own implementation.
    let deprecated = input.attrs.iter().any(|attribute| attribute.path().is_ident("deprecated"));
    let lints = deprecated.then(|| quote!(#[allow(deprecated)]));
    let both = [event, described].map(|(of, generics, items)| {
        let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
        quote! {
            #[automatically_derived]
            #lints
            impl #impl_generics #of for #ident #ty_generics #where_clause {
                #items
            }
        }
    });
    quote! {
        const _: () = { #(#both)* };
    }
}

fn krate(path: Option<&Path>) -> TokenStream {
    path.map_or_else(|| quote!(::outbox_diesel), ToTokens::to_token_stream)
}
