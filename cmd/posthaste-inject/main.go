// Posthaste-inject is the inject service, which takes mail by HTTP. Master executes it when master.cf
// has that. It is a program of its own so that what it needs for HTTP is in no other process. See
// package inject.
package main

import (
	"os"

	"posthaste/internal/inject"
	"posthaste/internal/service"
)

func main() { os.Exit(service.Main(inject.Spec(), os.Args[1:])) }
