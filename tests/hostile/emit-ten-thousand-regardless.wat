;; Emits 10,000 events, whatever it is told.
(core module $memory
  (memory (export "memory") 4)
  (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 65536)))
(core module $main
  (import "memory" "memory" (memory 1))
  (import "host" "emit" (func $emit
    (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32)))
  (data (i32.const 2048) "flood{}")
  (func (export "handle") (param i32) (result i32)
    (local $left i32)
    (local.set $left (i32.const 10000))
    (loop $more
      (call $emit
        (i32.const 2048) (i32.const 5) (i32.const 2048) (i32.const 5)
        (i32.const 2048) (i32.const 5) (i32.const 1) (i32.const 2053) (i32.const 2)
        (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
        (i32.const 0) (i64.const 0) (i32.const 4096))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $more (local.get $left)))
    (i32.const 1024))
  (func (export "after") (param i32)))
