//! What a source file uses, by syntax: paths with imports resolved, re-exports, types of public
//! items.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{Literal, TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// A path's names, from the crate's root (without `crate`) or an external crate.
pub type Names = Vec<String>;

/// What a file uses and exposes, without its unit tests.
#[derive(Debug, Default)]
pub struct Source {
    /// The file's module, without `crate`.
    pub module: Names,
    /// Every path, in imports, expressions, types and macro arguments.
    pub paths: BTreeSet<UsedPath>,
    /// `pub use`: the name here, and its path.
    pub exports: BTreeMap<String, UsedPath>,
    /// Types in public fields and results of public functions, by `Type.field` or the function's
    /// name.
    pub hands_out: BTreeMap<String, BTreeSet<UsedPath>>,
    /// Types that it defines, also in unit tests.
    pub types: Vec<String>,
    /// Types to which it adds methods of its own, not a trait's.
    pub extended: BTreeSet<UsedPath>,
    /// Such as `println`.
    pub macros: BTreeSet<String>,
    /// Also in macro arguments.
    pub texts: BTreeSet<String>,
    /// Names of the methods that it calls.
    pub methods: BTreeSet<String>,
    /// Its modules that other modules than its own may use.
    pub open_modules: Vec<String>,
    /// It has unsafe code.
    pub is_unsafe: bool,
}

/// A resolved path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum UsedPath {
    /// Of this crate.
    Own(Names),
    /// Of another crate, or of the standard library.
    External(Names),
}

impl Source {
    /// Reads the file at `path`, below `src`.
    pub fn read(path: &Path) -> Source {
        let text = std::fs::read_to_string(path).unwrap();
        let below = path.strip_prefix("src").unwrap_or(path).with_extension("");
        let mut module: Names =
            below.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
        if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
            module.pop();
        }
        Source::parse(&text, module)
    }

    /// Reads `text`, the file of `module`.
    pub fn parse(text: &str, module: Names) -> Source {
        let file = syn::parse_file(text).unwrap();
        let mut reader = Reader { inside: module.clone(), ..Reader::default() };
        reader.source.module = module;
        reader.visit_items(&file.items);
        let Reader { source, .. } = reader;
        source
    }

    /// The file's room.
    pub fn room(&self) -> &str {
        self.module.first().map_or("", String::as_str)
    }
}

#[derive(Default)]
struct Reader {
    source: Source,
    /// The module being read: the file's, or one inside it.
    inside: Names,
    /// Imported names in that module.
    imports: BTreeMap<String, UsedPath>,
}

impl Reader {
    fn visit_items(&mut self, items: &[syn::Item]) {
        let mut imports = BTreeMap::new();
        for item in items {
            if let syn::Item::Use(item) = item
                && !is_for_tests(&item.attrs)
            {
                for (name, path) in self.use_tree(&item.tree) {
                    imports.insert(name, path);
                }
            }
        }
        let outer = std::mem::replace(&mut self.imports, imports);
        for item in items {
            self.visit_item(item);
        }
        self.imports = outer;
    }

    /// The names that an import brings, with their paths.
    fn use_tree(&self, tree: &syn::UseTree) -> Vec<(String, UsedPath)> {
        let mut found = Vec::new();
        let mut left: Vec<(Names, &syn::UseTree)> = vec![(Vec::new(), tree)];
        while let Some((mut before, tree)) = left.pop() {
            match tree {
                syn::UseTree::Path(path) => {
                    before.push(path.ident.to_string());
                    left.push((before, &path.tree));
                }
                syn::UseTree::Name(name) if name.ident == "self" => {
                    let last = before.last().cloned().unwrap_or_default();
                    found.push((last, before));
                }
                syn::UseTree::Name(name) => {
                    before.push(name.ident.to_string());
                    found.push((name.ident.to_string(), before));
                }
                syn::UseTree::Rename(rename) if rename.ident == "self" => {
                    found.push((rename.rename.to_string(), before));
                }
                syn::UseTree::Rename(rename) => {
                    before.push(rename.ident.to_string());
                    found.push((rename.rename.to_string(), before));
                }
                syn::UseTree::Glob(_) => found.push(("*".to_owned(), before)),
                syn::UseTree::Group(group) => {
                    left.extend(group.items.iter().map(|tree| (before.clone(), tree)));
                }
            }
        }
        found.into_iter().map(|(name, path)| (name, self.absolute(&path))).collect()
    }

    /// Resolves `crate`, `self` and `super`, but not imports.
    fn absolute(&self, path: &[String]) -> UsedPath {
        let mut base = match path.first().map(String::as_str) {
            Some("crate") => return UsedPath::Own(path[1..].to_vec()),
            Some("self" | "super") => self.inside.clone(),
            _ => return UsedPath::External(path.to_vec()),
        };
        let mut rest = path;
        while let Some(first) = rest.first() {
            match first.as_str() {
                "self" => {}
                "super" => drop(base.pop()),
                _ => break,
            }
            rest = &rest[1..];
        }
        base.extend(rest.iter().cloned());
        UsedPath::Own(base)
    }

    fn resolve(&self, path: &[String]) -> UsedPath {
        match path.first().and_then(|first| self.imports.get(first)) {
            Some(UsedPath::Own(known)) => UsedPath::Own([known, &path[1..]].concat()),
            Some(UsedPath::External(known)) => UsedPath::External([known, &path[1..]].concat()),
            None => self.absolute(path),
        }
    }

    fn add_path(&mut self, path: &[String]) {
        let path = self.resolve(path);
        self.source.paths.insert(path);
    }

    /// Macro arguments have no syntax: names joined by `::` in them are paths.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Names = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.add_path(&std::mem::take(&mut path));
                    }
                    if ident == "unsafe" {
                        self.source.is_unsafe = true;
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Literal(text) => {
                    self.add_text(&text);
                    self.add_path(&std::mem::take(&mut path));
                    colons = 0;
                }
                TokenTree::Group(group) => {
                    self.add_path(&std::mem::take(&mut path));
                    colons = 0;
                    self.add_tokens(group.stream());
                }
                _ => {
                    self.add_path(&std::mem::take(&mut path));
                    colons = 0;
                }
            }
        }
        self.add_path(&path);
    }

    fn add_text(&mut self, literal: &Literal) {
        if let syn::Lit::Str(text) = syn::Lit::new(literal.clone()) {
            self.source.texts.insert(text.value());
        }
    }

    /// The paths in a public type.
    fn hand_out(&mut self, name: String, visit: impl FnOnce(&mut TypePaths)) {
        let mut paths = TypePaths::default();
        visit(&mut paths);
        let found: BTreeSet<UsedPath> = paths.0.iter().map(|path| self.resolve(path)).collect();
        self.source.hands_out.entry(name).or_default().extend(found);
    }
}

#[derive(Default)]
struct TypePaths(Vec<Names>);

impl<'ast> Visit<'ast> for TypePaths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0.push(names(path));
        visit::visit_path(self, path);
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        match item {
            syn::Item::Struct(it) => self.source.types.push(it.ident.to_string()),
            syn::Item::Enum(it) => self.source.types.push(it.ident.to_string()),
            syn::Item::Trait(it) => self.source.types.push(it.ident.to_string()),
            syn::Item::Type(it) => self.source.types.push(it.ident.to_string()),
            _ => {}
        }
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !matches!(module.vis, syn::Visibility::Inherited) {
            self.source.open_modules.push(module.ident.to_string());
        }
        if let Some((_, items)) = &module.content {
            self.inside.push(module.ident.to_string());
            self.visit_items(items);
            self.inside.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_public = !matches!(item.vis, syn::Visibility::Inherited);
        for (name, path) in self.use_tree(&item.tree) {
            if is_public {
                self.source.exports.insert(name, path.clone());
            }
            self.source.paths.insert(path);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        for field in item.fields.iter().filter(|field| is_public(&field.vis)) {
            let field_name = field.ident.as_ref().map_or("0".to_owned(), ToString::to_string);
            self.hand_out(format!("{}.{field_name}", item.ident), |paths| paths.visit_field(field));
        }
        visit::visit_item_struct(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if is_public(&item.vis) {
            let name = format!("{}()", item.sig.ident);
            self.hand_out(name, |paths| paths.visit_return_type(&item.sig.output));
        }
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if is_for_tests(&item.attrs) {
            return;
        }
        if is_public(&item.vis) {
            let name = format!("{}()", item.sig.ident);
            self.hand_out(name, |paths| paths.visit_return_type(&item.sig.output));
        }
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.add_path(&names(path));
        visit::visit_path(self, path);
    }

    fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
        self.source.texts.insert(text.value());
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.source.methods.insert(call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.source.macros.extend(call.path.segments.last().map(|it| it.ident.to_string()));
        self.add_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_expr_unsafe(&mut self, item: &'ast syn::ExprUnsafe) {
        self.source.is_unsafe = true;
        visit::visit_expr_unsafe(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.source.is_unsafe |= item.unsafety.is_some();
        if let (None, syn::Type::Path(of)) = (&item.trait_, &*item.self_ty) {
            let path = self.resolve(&names(&of.path));
            self.source.extended.insert(path);
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_signature(&mut self, item: &'ast syn::Signature) {
        self.source.is_unsafe |= item.unsafety.is_some();
        visit::visit_signature(self, item);
    }
}

fn names(path: &syn::Path) -> Names {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

/// Whether an item is for unit tests only.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(it) => &it.attrs,
        syn::Item::Enum(it) => &it.attrs,
        syn::Item::Fn(it) => &it.attrs,
        syn::Item::Impl(it) => &it.attrs,
        syn::Item::Mod(it) => &it.attrs,
        syn::Item::Static(it) => &it.attrs,
        syn::Item::Struct(it) => &it.attrs,
        syn::Item::Trait(it) => &it.attrs,
        syn::Item::Type(it) => &it.attrs,
        syn::Item::Use(it) => &it.attrs,
        _ => &[],
    }
}
