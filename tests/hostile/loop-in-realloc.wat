;; Never says where the event may be put.
(core module $memory
  (memory (export "memory") 1)
  (func (export "realloc") (param i32 i32 i32 i32) (result i32)
    (loop $again (br $again)) (unreachable)))
(core module $main
  (import "memory" "memory" (memory 1))
  (func (export "handle") (param i32) (result i32)
    (i32.const 1024))
  (func (export "after") (param i32)))
