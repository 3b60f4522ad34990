;; Logs 1,024 messages of 1 MiB, and ends well.
(core module $memory
  (memory (export "memory") 32)
  (global $next (mut i32) (i32.const 65536))
  (func (export "realloc") (param i32 i32 i32 i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
    (global.set $next (i32.add (local.get $at) (local.get 3)))
    (local.get $at)))
(core module $main
  (import "memory" "memory" (memory 1))
  (import "host" "log" (func $log (param i32 i32 i32)))
  (func (export "handle") (param i32) (result i32)
    (local $left i32)
    (local.set $left (i32.const 1024))
    (memory.fill (i32.const 131072) (i32.const 120) (i32.const 1048576))
    (loop $more
      (call $log (i32.const 2) (i32.const 131072) (i32.const 1048576))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $more (local.get $left)))
    (i32.const 1024))
  (func (export "after") (param i32)))
