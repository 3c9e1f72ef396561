package virtual

import (
	"posthaste/internal/agent"
	"posthaste/internal/service"
)

// Spec declares the service.
func Spec() service.Spec {
	s := agent.Spec("virtual", func(env *service.Env) (agent.Deliverer, func(), error) {
		a, err := New(env.Config, env.Name, env.Log)
		return a, nil, err
	})
	s.Syncs = true
	return s
}
