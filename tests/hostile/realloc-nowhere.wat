;; Says that the event may be put beyond its memory.
(core module $memory
  (memory (export "memory") 1)
  (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const -65536)))
(core module $main
  (import "memory" "memory" (memory 1))
  (func (export "handle") (param i32) (result i32)
    (i32.const 1024))
  (func (export "after") (param i32)))
