package errordrop

import (
	"posthaste/internal/agent"
	"posthaste/internal/service"
)

// Spec declares the service error. Under the name retry in master.cf it is the retry transport.
func Spec() service.Spec {
	s := agent.Spec("error", func(env *service.Env) (agent.Deliverer, func(), error) {
		return Agent{Retry: env.Name == "retry"}, nil, nil
	})
	s.Frugal, s.Sandbox = true, service.Plain
	return s
}
