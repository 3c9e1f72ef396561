package discard

import (
	"posthaste/internal/agent"
	"posthaste/internal/service"
)

// Spec declares the service.
func Spec() service.Spec {
	s := agent.Spec("discard", func(*service.Env) (agent.Deliverer, func(), error) { return Agent{}, nil, nil })
	s.Frugal, s.Sandbox = true, service.Plain
	return s
}
