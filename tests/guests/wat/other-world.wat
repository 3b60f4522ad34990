;; A sound component that was built for another world: it exports no handler.
(component
  (core module $module
    (func (export "run") (result i32)
      i32.const 7))
  (core instance $core (instantiate $module))
  (func $run (result u32) (canon lift (core func $core "run")))
  (instance $interface (export "run" (func $run)))
  (export "acme:thing/run@0.1.0" (instance $interface)))
