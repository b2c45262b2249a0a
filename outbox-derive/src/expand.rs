//! The implementation, and its stand-in when there were mistakes.

use proc_macro2::{Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{DeriveInput, Generics, Member, Path};

use crate::ast::Field;
use crate::attr::{self, Errors, Options};
use crate::bounds;
use crate::case::{Case, Value};
use crate::check::{Arm, Event, Kind};

/// ```text
/// const _: () = {
///     #[automatically_derived]
///     impl outbox_diesel::OutboxEvent for OrderCreated { .. }
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
        fn write_payload(
            &self,
            #json: &mut #private::Vec<#private::u8>,
        ) -> #private::Result<(), #private::serde_json::Error> {
            #private::write_payload(#json, #value)
        }
    };
    implementation(&krate, written.original, &bounds::bounded(event, &krate), &items)
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
    let stand_in = implementation(&krate, input, &input.generics, &items);
    quote!(#mistakes #stand_in)
}

fn implementation(
    krate: &TokenStream,
    input: &DeriveInput,
    generics: &Generics,
    items: &TokenStream,
) -> TokenStream {
    let ident = &input.ident;
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    // The type's users are to be warned, not its own implementation.
    let deprecated = input.attrs.iter().any(|attribute| attribute.path().is_ident("deprecated"));
    let lints = deprecated.then(|| quote!(#[allow(deprecated)]));
    quote! {
        const _: () = {
            #[automatically_derived]
            #lints
            impl #impl_generics #krate::OutboxEvent for #ident #ty_generics #where_clause {
                #items
            }
        };
    }
}

fn krate(path: Option<&Path>) -> TokenStream {
    path.map_or_else(|| quote!(::outbox_diesel), ToTokens::to_token_stream)
}

fn local(name: &str, place: Span) -> Ident {
    Ident::new(name, Span::mixed_site().located_at(place))
}

/// Bodies of methods: one expression for a struct, one arm a variant for an enum.
struct Methods<'a> {
    event: &'a Event<'a>,
    krate: &'a TokenStream,
}

impl<'a> Methods<'a> {
    /// Whether a provided method needs an implementation.
    fn some(&self, differs: impl Fn(&Case<'_>) -> bool) -> bool {
        match &self.event.kind {
            Kind::Struct(case) => differs(case),
            Kind::Enum(arms) => arms.iter().any(|(_, arm)| match arm {
                Arm::Case(case) => differs(case),
                Arm::Delegate { .. } => true,
            }),
        }
    }

    fn constant<T: ToTokens>(&self, method: &str, of: impl Fn(&Case<'_>) -> T) -> TokenStream {
        self.each(method, |_| &[], |case, _| of(case).into_token_stream())
    }

    fn each(
        &self,
        method: &str,
        values: impl Fn(&'a Case<'a>) -> &'a [Value<'a>],
        body: impl Fn(&Case<'_>, &[TokenStream]) -> TokenStream,
    ) -> TokenStream {
        let (krate, method) = (self.krate, format_ident!("{method}"));
        self.dispatch(
            |case| values(case).to_vec(),
            body,
            |inner, _| quote!(#krate::OutboxEvent::#method(#inner)),
        )
    }

    fn headers(&self, headers: &Ident) -> TokenStream {
        let krate = self.krate;
        let set = |named: &[(String, Value<'_>)], values: &[TokenStream]| {
            let names = named.iter().map(|(name, _)| name);
            quote!(#(#krate::__private::header(#headers, #names, #values);)*)
        };
        self.dispatch(
            |case| case.headers.iter().map(|&(_, value)| value).collect(),
            |case, values| set(&case.headers, values),
            |inner, outer| {
                let values: Vec<_> =
                    outer.iter().map(|&(_, value)| display(value, Place::Variant, krate)).collect();
                let outer = set(outer, &values);
                quote!(#krate::OutboxEvent::headers(#inner, #headers); #outer)
            },
        )
    }

    fn dispatch(
        &self,
        values: impl Fn(&'a Case<'a>) -> Vec<Value<'a>>,
        body: impl Fn(&Case<'_>, &[TokenStream]) -> TokenStream,
        delegate: impl Fn(&Ident, &[(String, Value<'_>)]) -> TokenStream,
    ) -> TokenStream {
        let render = |case, place| {
            let values = values(case);
            let shown: Vec<_> =
                values.iter().map(|&value| display(value, place, self.krate)).collect();
            (pattern(&values), body(case, &shown))
        };
        let arms = match &self.event.kind {
            Kind::Struct(case) => return render(case, Place::Struct).1,
            Kind::Enum(arms) => arms,
        };
        let arms = arms.iter().map(|(variant, arm)| match arm {
            Arm::Case(case) => {
                let (pattern, body) = render(case, Place::Variant);
                quote!(Self::#variant { #pattern .. } => { #body })
            }
            Arm::Delegate { inner, headers } => {
                let inner = local("inner", inner.span());
                let body = delegate(&inner, headers);
                quote!(Self::#variant(ref #inner) => { #body })
            }
        });
        quote!(match *self { #(#arms)* })
    }
}

/// Where a value is read: the fields of a struct are places, those of a variant are bound.
#[derive(Clone, Copy)]
enum Place {
    Struct,
    Variant,
}

/// `Value::display(&self.id)`
fn display(value: Value<'_>, place: Place, krate: &TokenStream) -> TokenStream {
    let value = match (value, place) {
        (Value::Field(field), Place::Struct) => {
            let member = &field.member;
            quote_spanned!(located(field.span)=> &self.#member)
        }
        (Value::Field(field), Place::Variant) => binding(field).into_token_stream(),
        (Value::Expr(expr, []), _) => {
            let value = with_own_self(expr.to_token_stream());
            quote_spanned!(located(expr.span())=> &(#value))
        }
        (Value::Expr(expr, scope), _) => {
            let value = with_own_self(expr.to_token_stream());
            let names: Vec<_> = scope.iter().map(name_in_scope).collect();
            let bindings = scope.iter().map(binding);
            quote_spanned! {located(expr.span())=>
                &{
                    let (#(#names,)*) = (#(#bindings,)*);
                    let _ = (#(#names,)*);
                    #value
                }
            }
        }
    };
    quote!(#krate::__private::Value::display(#value))
}

/// The fields that the values read, each once: `id: ref field_id,`
fn pattern(values: &[Value<'_>]) -> TokenStream {
    let mut fields = Vec::<&Field<'_>>::new();
    for value in values {
        let read = match value {
            Value::Field(field) => std::slice::from_ref(*field),
            Value::Expr(_, scope) => scope,
        };
        for field in read {
            if !fields.iter().any(|known| known.name == field.name) {
                fields.push(field);
            }
        }
    }
    let members = fields.iter().map(|field| &field.member);
    let bindings = fields.iter().map(|field| binding(field));
    quote!(#(#members: ref #bindings,)*)
}

fn binding(field: &Field<'_>) -> Ident {
    local(&format!("field_{}", field.name), field.span)
}

/// A field as the expressions of its variant know it; `_0` where it has no name.
fn name_in_scope(field: &Field<'_>) -> Ident {
    match &field.member {
        Member::Named(ident) => ident.clone(),
        Member::Unnamed(index) => Ident::new(&format!("_{}", index.index), Span::call_site()),
    }
}

/// What a `None` names.
fn source(value: Value<'_>, krate: &TokenStream) -> TokenStream {
    match value {
        Value::Field(field) => field.name.to_token_stream(),
        Value::Expr(expr, _) => quote!(#krate::__private::stringify!(#expr)),
    }
}

fn located(span: Span) -> Span {
    span.resolved_at(Span::call_site())
}

/// Lets `self` mean the event also where the expression was handed through `macro_rules`.
fn with_own_self(tokens: TokenStream) -> TokenStream {
    let mend = |token| match token {
        TokenTree::Ident(mut ident) if ident == "self" => {
            ident.set_span(located(ident.span()));
            TokenTree::Ident(ident)
        }
        TokenTree::Group(group) => {
            let mut mended = Group::new(group.delimiter(), with_own_self(group.stream()));
            mended.set_span(group.span());
            TokenTree::Group(mended)
        }
        other => other,
    };
    tokens.into_iter().map(mend).collect()
}
