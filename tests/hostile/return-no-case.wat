;; Returns a case that its result does not have.
(core module $memory
  (memory (export "memory") 4)
  (global $next (mut i32) (i32.const 65536))
  (func (export "realloc") (param i32 i32 i32 i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
    (global.set $next (i32.add (local.get $at) (local.get 3)))
    (local.get $at)))
(core module $main
  (import "memory" "memory" (memory 1))
  (func (export "handle") (param i32) (result i32)
    (i32.store8 (i32.const 1024) (i32.const 7))
    (i32.const 1024))
  (func (export "after") (param i32)))
