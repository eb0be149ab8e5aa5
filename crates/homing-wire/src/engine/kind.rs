//! The engines that are told apart, and what each calls the switches that make it tell of its cache.
//! One place for them, since the log, the answers of `homing doctor` and the docs name the same ones.

/// A kind of engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// vLLM, and whatever answers as it does.
    #[default]
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM behind `trtllm-serve`.
    TensorRtLlm,
}

impl Kind {
    /// By the `owned_by` of the models that it serves; `None` where that says nothing.
    #[must_use]
    pub fn from_owner(owner: &str) -> Option<Self> {
        match owner {
            "vllm" => Some(Self::Vllm),
            "sglang" => Some(Self::Sglang),
            "tensorrt_llm" => Some(Self::TensorRtLlm),
            _ => None,
        }
    }

    /// What switches its KV events on.
    #[must_use]
    pub const fn events_switch(self) -> &'static str {
        match self {
            Self::Vllm => {
                "start vLLM with --kv-events-config \
                 '{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"topic\":\"kv-events\"}'"
            }
            Self::Sglang => {
                "start SGLang with --kv-events-config \
                 '{\"publisher\":\"zmq\",\"topic\":\"kv-events\",\"endpoint\":\"tcp://*:5557\"}'"
            }
            Self::TensorRtLlm => {
                "start trtllm-serve with `kv_cache_config: {enable_block_reuse: true, \
                 event_buffer_max_size: 65536}` in the file of its --extra_llm_api_options"
            }
        }
    }
}
