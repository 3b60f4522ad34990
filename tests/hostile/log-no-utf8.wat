;; Logs what is no UTF-8.
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
  (import "host" "log" (func $log (param i32 i32 i32)))
  (data (i32.const 2048) "\ff\fe\80")
  (func (export "handle") (param i32) (result i32)
    (call $log (i32.const 2) (i32.const 2048) (i32.const 3))
    (i32.const 1024))
  (func (export "after") (param i32)))
