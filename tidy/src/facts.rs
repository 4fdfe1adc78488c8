//! Counts and names of one source, from its syntax tree. Items under `#[cfg(test)]` are left out.

use std::collections::BTreeMap;

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, FnArg, Meta, Pat, ReturnType, Visibility};

/// One struct with named fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Struct {
    /// Name without the crate.
    pub name: String,
    /// Number of fields.
    pub fields: usize,
    /// True for what the command line is read into, or is checked to be.
    pub is_settings: bool,
}

/// Counts and names of one source.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Lines without tests.
    pub lines: usize,
    /// Doc comments, each as one text, with its first line's number.
    pub docs: Vec<(usize, String)>,
    /// Structs with named fields.
    pub structs: Vec<Struct>,
    /// Structs, enums, traits and type aliases that the source defines.
    pub types: Vec<String>,
    /// Methods of each type, as far as they are in this source.
    pub methods: BTreeMap<String, usize>,
    /// Functions whose names begin with `is_` or `has_` and that do not return `bool`, or change
    /// what they are asked about.
    pub not_questions: Vec<String>,
    /// Functions, with their lines.
    pub functions: Vec<(String, usize)>,
    /// Items and methods that are plainly `pub`; fields and variants are not counted.
    pub public: usize,
    /// `let (a, b) = (x, y)`.
    pub tuple_lets: usize,
    /// `as` to a numeric type.
    pub casts: usize,
    /// `assert!`, `debug_assert!` and the like.
    pub assertions: usize,
}

impl Facts {
    /// Reads a source.
    ///
    /// # Errors
    ///
    /// If it is not Rust.
    pub fn new(text: &str) -> syn::Result<Self> {
        let file = syn::parse_file(text)?;
        let mut reader = Reader { facts: Self::default(), implemented: String::new() };
        reader.facts.lines = text.lines().count();
        reader.note_docs(&file.attrs);
        reader.visit_file(&file);
        Ok(reader.facts)
    }
}

struct Reader {
    facts: Facts,
    /// Type of the `impl` block that is being read.
    implemented: String,
}

const NUMBERS: [&str; 14] = [
    "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize", "f32",
    "f64",
];

impl Reader {
    fn note_docs(&mut self, attributes: &[Attribute]) {
        let mut text = String::new();
        let mut first = 0;
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("doc")) {
            let Meta::NameValue(value) = &attribute.meta else { continue };
            let Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(line), .. }) = &value.value else {
                continue;
            };
            if text.is_empty() {
                first = attribute.span().start().line;
            }
            text.push_str(line.value().trim());
            text.push('\n');
        }
        if !text.is_empty() {
            self.facts.docs.push((first, text));
        }
    }

    fn note_public(&mut self, visibility: &Visibility) {
        self.facts.public += usize::from(matches!(visibility, Visibility::Public(_)));
    }

    fn note_function(&mut self, signature: &syn::Signature, lines: usize) {
        let name = signature.ident.to_string();
        let is_question = name.starts_with("is_") || name.starts_with("has_");
        let is_bool = matches!(&signature.output, ReturnType::Type(_, kind)
            if matches!(&**kind, syn::Type::Path(path) if path.path.is_ident("bool")));
        let writes = match signature.inputs.first() {
            Some(FnArg::Receiver(receiver)) => {
                receiver.reference.is_some() && receiver.mutability.is_some()
            }
            Some(FnArg::Typed(argument)) => {
                matches!(&*argument.ty, syn::Type::Reference(kind) if kind.mutability.is_some())
            }
            None => false,
        };
        if is_question && (!is_bool || writes) {
            self.facts.not_questions.push(name.clone());
        }
        self.facts.functions.push((name, lines));
    }
}

/// True for `#[cfg(test)]`, also beside other conditions.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => list
            .tokens
            .to_string()
            .split(|letter: char| !letter.is_alphanumeric())
            .any(|word| word == "test"),
        Meta::Path(path) => path.is_ident("test"),
        _ => false,
    })
}

/// Attributes of an item, its visibility, and the name of the type that it defines.
fn parts(item: &syn::Item) -> (&[Attribute], Option<&Visibility>, Option<&syn::Ident>) {
    use syn::Item;
    match item {
        Item::Const(item) => (&item.attrs, Some(&item.vis), None),
        Item::Enum(item) => (&item.attrs, Some(&item.vis), Some(&item.ident)),
        Item::Fn(item) => (&item.attrs, Some(&item.vis), None),
        Item::Impl(item) => (&item.attrs, None, None),
        Item::Macro(item) => (&item.attrs, None, None),
        Item::Mod(item) => (&item.attrs, Some(&item.vis), None),
        Item::Static(item) => (&item.attrs, Some(&item.vis), None),
        Item::Struct(item) => (&item.attrs, Some(&item.vis), Some(&item.ident)),
        Item::Trait(item) => (&item.attrs, Some(&item.vis), Some(&item.ident)),
        Item::Type(item) => (&item.attrs, Some(&item.vis), Some(&item.ident)),
        Item::Use(item) => (&item.attrs, Some(&item.vis), None),
        _ => (&[], None, None),
    }
}

fn lines(from: proc_macro2::Span) -> usize {
    from.end().line - from.start().line + 1
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let (attributes, visibility, name) = parts(item);
        if is_test(attributes) {
            self.facts.lines -= lines(item.span());
            return;
        }
        if let Some(visibility) = visibility {
            self.note_public(visibility);
        }
        self.facts.types.extend(name.map(ToString::to_string));
        self.note_docs(attributes);
        visit::visit_item(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.note_function(&item.sig, lines(item.block.span()));
        visit::visit_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        if let syn::Fields::Named(fields) = &item.fields {
            let name = item.ident.to_string();
            let derives = |wanted: &str| {
                item.attrs.iter().any(|attribute| {
                    matches!(&attribute.meta, Meta::List(list)
                        if list.path.is_ident("derive") && list.tokens.to_string().contains(wanted))
                })
            };
            let is_settings = derives("Args")
                || derives("Parser")
                || name.ends_with("Settings")
                || name.ends_with("Metrics");
            self.facts.structs.push(Struct { name, fields: fields.named.len(), is_settings });
        }
        visit::visit_item_struct(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let before = std::mem::take(&mut self.implemented);
        if let (syn::Type::Path(path), None) = (&*item.self_ty, &item.trait_) {
            self.implemented =
                path.path.segments.last().expect("BUG: a path has a name").ident.to_string();
        }
        visit::visit_item_impl(self, item);
        self.implemented = before;
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if is_test(&item.attrs) {
            return;
        }
        self.note_public(&item.vis);
        self.note_docs(&item.attrs);
        self.note_function(&item.sig, lines(item.block.span()));
        if !self.implemented.is_empty() {
            *self.facts.methods.entry(self.implemented.clone()).or_default() += 1;
        }
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.note_docs(&item.attrs);
        self.note_function(&item.sig, item.default.as_ref().map_or(0, |block| lines(block.span())));
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        self.note_docs(&field.attrs);
        visit::visit_field(self, field);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.note_docs(&variant.attrs);
        visit::visit_variant(self, variant);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        let is_tuple = matches!(&local.pat, Pat::Tuple(_))
            && matches!(&local.init, Some(init) if matches!(&*init.expr, Expr::Tuple(_)));
        self.facts.tuple_lets += usize::from(is_tuple);
        visit::visit_local(self, local);
    }

    fn visit_expr_cast(&mut self, cast: &'ast syn::ExprCast) {
        let is_number = matches!(&*cast.ty, syn::Type::Path(path)
            if NUMBERS.iter().any(|name| path.path.is_ident(name)));
        self.facts.casts += usize::from(is_number);
        visit::visit_expr_cast(self, cast);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        let name =
            called.path.segments.last().map(|part| part.ident.to_string()).unwrap_or_default();
        let is_assertion = name.starts_with("assert") || name.starts_with("debug_assert");
        self.facts.assertions += usize::from(is_assertion);
        visit::visit_macro(self, called);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(text: &str) -> Facts {
        Facts::new(text).expect("Rust")
    }

    #[test]
    fn tests_are_left_out() {
        let found =
            facts("fn a() {}\n#[cfg(test)]\nmod tests {\n    pub fn is_b() -> u8 { 1 as u8 }\n}\n");
        assert_eq!((found.lines, found.casts, found.public), (1, 0, 0));
        assert_eq!(found.not_questions, [""; 0]);
    }

    #[test]
    fn what_the_table_counts_is_counted() {
        let found = facts(
            "//! What.\n/// A pair.\npub struct A { a: u8, pub b: u8 }\n\
             impl A {\n    pub fn is_c(&self) -> Option<bool> { None }\n    fn has_d(&self) -> bool { true }\n    fn is_e(&mut self) -> bool { true }\n}\n\
             fn is_f(a: &mut A) -> bool { true }\nfn e() {\n    let (a, b) = (1, 2);\n    let (c, d) = f();\n    debug_assert!(a as u64 == 1);\n    let _ = b as u64;\n}\n",
        );
        assert_eq!((found.public, found.tuple_lets, found.casts, found.assertions), (2, 1, 1, 1));
        assert_eq!(found.not_questions, ["is_c", "is_e", "is_f"]);
        assert_eq!(found.methods["A"], 3);
        assert_eq!(found.docs, [(1, "What.\n".to_owned()), (2, "A pair.\n".to_owned())]);
        let expected = Struct { name: "A".to_owned(), fields: 2, is_settings: false };
        assert_eq!((found.structs, found.types), (vec![expected], vec!["A".to_owned()]));
    }
}
