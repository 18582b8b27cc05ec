//! Figures of Pytorch-Memory-Utils' `modelsize`, from a live forward pass.
//!
//! The tool sums the elements of all modules' results, at 4 bytes, without `ReLU(inplace=True)`.
//! Here a result's size is that at the weights' node, or of the next module's input; some modules
//! keep the input's size.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::{GraphNode, NamedModule, OwnershipSnapshot, RootModule, SavedIn};

/// The tool's figures of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSize {
    /// Index of the model in [`OwnershipSnapshot::models`].
    pub model: usize,
    /// Of all its parameters.
    pub parameters: u64,
    /// Elements that its modules return, or why unknown.
    pub intermediates: Result<u64, String>,
}

/// Results have as many elements as inputs.
const KEEPS: [&str; 43] = [
    "AlphaDropout",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "CELU",
    "ChannelShuffle",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "ELU",
    "FeatureAlphaDropout",
    "Flatten",
    "GELU",
    "GroupNorm",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LeakyReLU",
    "LocalResponseNorm",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "PixelShuffle",
    "RMSNorm",
    "ReLU",
    "ReLU6",
    "SELU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Unflatten",
];

/// Modules with weights, and their nodes' classes without final number.
const WEIGHTED: [(&str, &[&str]); 8] = [
    ("Conv1d", CONVOLUTION),
    ("Conv2d", CONVOLUTION),
    ("Conv3d", CONVOLUTION),
    ("ConvTranspose1d", CONVOLUTION),
    ("ConvTranspose2d", CONVOLUTION),
    ("ConvTranspose3d", CONVOLUTION),
    ("Embedding", &["EmbeddingBackward"]),
    ("Linear", &["AddmmBackward", "MmBackward", "LinearBackward", "MkldnnLinearBackward"]),
];
const POOLS: [(&str, &[&str]); 5] = [
    ("AdaptiveAvgPool2d", &["AdaptiveAvgPool2DBackward", "MkldnnAdaptiveAvgPool2DBackward"]),
    ("AvgPool2d", &["AvgPool2DBackward"]),
    ("AvgPool3d", &["AvgPool3DBackward"]),
    (
        "MaxPool2d",
        &["MaxPool2DWithIndicesBackward", "MaxPool2DBackward", "MkldnnMaxPool2DBackward"],
    ),
    ("MaxPool3d", &["MaxPool3DWithIndicesBackward", "MkldnnMaxPool3DBackward"]),
];
const CONVOLUTION: &[&str] = &["ConvolutionBackward", "MkldnnConvolutionBackward"];
/// Nodes between a weight and its use.
const SEEN_THROUGH: [&str; 3] = ["TBackward", "TransposeBackward", "PermuteBackward"];

/// The tool's figures of every model.
pub fn model_sizes(snapshot: &OwnershipSnapshot) -> Vec<ModelSize> {
    let graph = Graph::new(snapshot);
    let of_model = |(index, model): (usize, &RootModule)| {
        let own: FxHashSet<u64> =
            model.modules.iter().flat_map(|module| module.parameters.iter().copied()).collect();
        let rows =
            snapshot.tensors.iter().filter(|row| row.object.is_some_and(|at| own.contains(&at)));
        let elements = rows.map(|row| row.tensor.numel.unwrap_or(0).max(0) as u64);
        ModelSize {
            model: index,
            parameters: elements.sum(),
            intermediates: match snapshot.cut_graph() {
                Some(incomplete) => {
                    Err(format!("the autograd graph was {}", incomplete.not_read()))
                }
                None => graph.intermediates(&model.modules),
            },
        }
    };
    snapshot.models.iter().enumerate().map(of_model).collect()
}

struct Graph<'a> {
    snapshot: &'a OwnershipSnapshot,
    /// Nodes that lead to an address.
    users: FxHashMap<u64, Vec<usize>>,
    /// The gradient node's address, by the leaf's `TensorImpl`.
    leaves: FxHashMap<u64, u64>,
    impl_of: FxHashMap<u64, u64>,
    /// Parameters by address of their memory.
    parameters: FxHashMap<u64, u64>,
    /// Tensors in a node's fields.
    saved_by: FxHashMap<usize, Vec<usize>>,
}

/// Elements of input and result, if known.
#[derive(Debug, Clone, Copy, Default)]
struct ModuleSizes {
    input: Option<u64>,
    output: Option<u64>,
    /// Both are equal.
    keeps: bool,
}

impl Graph<'_> {
    fn new(snapshot: &OwnershipSnapshot) -> Graph<'_> {
        let mut users: FxHashMap<u64, Vec<usize>> = FxHashMap::default();
        for (index, node) in snapshot.nodes.iter().enumerate() {
            for next in &node.next {
                users.entry(*next).or_default().push(index);
            }
        }
        let leaves =
            snapshot.nodes.iter().filter_map(|node| Some((node.variable?, node.at))).collect();
        let impl_of =
            snapshot.tensors.iter().filter_map(|row| Some((row.object?, row.tensor.at))).collect();
        let of_modules: FxHashSet<u64> = snapshot
            .models
            .iter()
            .flat_map(|model| &model.modules)
            .flat_map(|module| module.parameters.iter().copied())
            .collect();
        let on_storage = snapshot.tensors.iter().filter_map(|row| {
            let object = row.object.filter(|object| of_modules.contains(object))?;
            Some((row.tensor.storage?.data, object))
        });
        let mut saved_by: FxHashMap<usize, Vec<usize>> = FxHashMap::default();
        for (index, row) in snapshot.tensors.iter().enumerate() {
            for saved in row.saved.iter().filter(|saved| saved.by == SavedIn::Field) {
                saved_by.entry(saved.node).or_default().push(index);
            }
        }
        Graph { snapshot, users, leaves, impl_of, parameters: on_storage.collect(), saved_by }
    }

    fn intermediates(&self, modules: &[NamedModule]) -> Result<u64, String> {
        // The first is the model itself.
        let modules = modules.get(1..).unwrap_or_default();
        let called = |module: &NamedModule| format!("'{}' ({})", module.path, module.class);
        if let Some(outer) = modules.iter().find(|module| module.has_children) {
            return Err(format!(
                "{} contains modules, and modelsize runs these once more after it",
                called(outer)
            ));
        }
        if modules.is_empty() {
            return Err("it contains no modules, of which modelsize could run one".to_owned());
        }
        let mut sizes = Vec::with_capacity(modules.len());
        for module in modules {
            sizes.push(self.sizes(module).map_err(|why| format!("{} {why}", called(module)))?);
        }
        fill(&mut sizes);
        for (index, pair) in sizes.windows(2).enumerate() {
            if let (Some(returned), Some(given)) = (pair[0].output, pair[1].input)
                && returned != given
            {
                let (module, next) = (called(&modules[index]), called(&modules[index + 1]));
                return Err(format!(
                    "{module} returned {returned} elements and {next} was given {given}: they do not follow each other"
                ));
            }
        }
        let mut sum = 0u64;
        for (module, sizes) in modules.iter().zip(&sizes) {
            if module.inplace && &*module.class == "ReLU" {
                continue;
            }
            let Some(output) = sizes.output else {
                return Err(format!(
                    "what {} returned left no trace: no node uses its weights (frozen, or no forward pass is alive), and no \
                     module after it saved its input",
                    called(module)
                ));
            };
            sum = sum.saturating_add(output);
        }
        Ok(sum)
    }

    /// By the module's own nodes.
    fn sizes(&self, module: &NamedModule) -> Result<ModuleSizes, String> {
        if !module.is_of_torch {
            return Err("is of a class of the program's own".to_owned());
        }
        if KEEPS.contains(&&*module.class) {
            return Ok(ModuleSizes { keeps: true, ..ModuleSizes::default() });
        }
        let Some((_, classes)) = WEIGHTED.iter().find(|(class, _)| *class == &*module.class) else {
            let known = module.class.contains("Pool") || &*module.class == "Upsample";
            return match known && module.parameters.is_empty() {
                true => Ok(ModuleSizes {
                    output: self.only_pool(&module.class),
                    ..ModuleSizes::default()
                }),
                false => Err("is of a class whose results are not known from the graph".to_owned()),
            };
        };
        let mut seen: Option<ModuleSizes> = None;
        for node in self.nodes_of(module, classes) {
            let now = ModuleSizes {
                input: self.input_of(node),
                output: self.snapshot.nodes[node].outputs.first().copied().flatten(),
                keeps: false,
            };
            match seen {
                Some(before) if before.output != now.output => {
                    return Err(
                        "returned different sizes in forward passes that are alive".to_owned()
                    );
                }
                _ => seen = Some(now),
            }
        }
        Ok(seen.unwrap_or_default())
    }

    /// If the class has a single module and node.
    fn only_pool(&self, class: &str) -> Option<u64> {
        let (_, kinds) = POOLS.iter().find(|(known, _)| *known == class)?;
        let modules = self.snapshot.models.iter().flat_map(|model| &model.modules);
        let mut nodes =
            self.snapshot.nodes.iter().filter(|node| kinds.contains(&without_number(node)));
        let (node, None) = (nodes.next()?, nodes.next()) else { return None };
        let is_only = modules.filter(|module| &*module.class == class).count() == 1;
        node.outputs.first().copied().flatten().filter(|_| is_only)
    }

    /// The nodes of a module's result, found by its weights.
    fn nodes_of(&self, module: &NamedModule, classes: &[&str]) -> FxHashSet<usize> {
        let leaves = module.parameters.iter().filter_map(|object| self.impl_of.get(object));
        let mut waiting: Vec<u64> = leaves.filter_map(|at| self.leaves.get(at).copied()).collect();
        let mut found = FxHashSet::default();
        while let Some(at) = waiting.pop() {
            for &user in self.users.get(&at).into_iter().flatten() {
                let node = &self.snapshot.nodes[user];
                let class = without_number(node);
                if classes.contains(&class) {
                    found.insert(user);
                } else if SEEN_THROUGH.contains(&class) {
                    waiting.push(node.at);
                }
            }
        }
        // The node may have saved frozen weights or views.
        for (&node, rows) in &self.saved_by {
            let is_its_own = |&row: &usize| {
                let storage = self.snapshot.tensors[row].tensor.storage;
                let parameter = storage.and_then(|storage| self.parameters.get(&storage.data));
                parameter.is_some_and(|object| module.parameters.contains(object))
            };
            if classes.contains(&without_number(&self.snapshot.nodes[node]))
                && rows.iter().any(is_its_own)
            {
                found.insert(node);
            }
        }
        found
    }

    /// Elements of the one saved tensor that is neither parameter nor result.
    fn input_of(&self, node: usize) -> Option<u64> {
        let rows = self.saved_by.get(&node)?.iter().map(|&row| &self.snapshot.tensors[row]);
        let mut inputs = rows.filter(|row| {
            let is_output = row.saved.iter().any(|saved| saved.node == node && saved.is_output);
            !is_output && !row.tensor.storage.is_some_and(|s| self.parameters.contains_key(&s.data))
        });
        match (inputs.next(), inputs.next()) {
            (Some(input), None) => u64::try_from(input.tensor.numel?).ok(),
            _ => None,
        }
    }
}

fn fill(sizes: &mut [ModuleSizes]) {
    // Sizes pass through modules that keep the number, both ways.
    for index in 0..sizes.len() {
        if sizes[index].keeps && index > 0 {
            sizes[index].input = sizes[index - 1].output;
            sizes[index].output = sizes[index].input;
        }
    }
    for index in (0..sizes.len()).rev() {
        let after = sizes.get(index + 1).and_then(|next| next.input);
        let here = &mut sizes[index];
        here.output = here.output.or(after);
        if here.keeps {
            here.input = here.input.or(here.output);
        }
    }
}

fn without_number(node: &GraphNode) -> &str {
    node.class.trim_end_matches(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_pass_through_modules_that_keep_them() {
        let keeps = ModuleSizes { keeps: true, ..ModuleSizes::default() };
        let known =
            |input, output| ModuleSizes { input: Some(input), output: Some(output), keeps: false };
        let mut sizes =
            [keeps, ModuleSizes::default(), keeps, known(5, 7), keeps, ModuleSizes::default()];
        fill(&mut sizes);
        let outputs: Vec<Option<u64>> = sizes.iter().map(|sizes| sizes.output).collect();
        assert_eq!(outputs, [None, Some(5), Some(5), Some(7), Some(7), None]);
    }
}
