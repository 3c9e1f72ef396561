package pipe

import (
	"posthaste/internal/agent"
	"posthaste/internal/service"
)

// Spec declares the service. "posthaste check" does not try it: a usual master.cf lists pipes to
// programs, and for users, that do not exist, and nobody misses them before they are used.
func Spec() service.Spec {
	s := agent.Spec("pipe", func(env *service.Env) (agent.Deliverer, func(), error) {
		a, err := New(env.Config, env.Name, env.Args, nil, env.Log)
		return a, nil, err
	})
	s.Tries = false
	return s
}
