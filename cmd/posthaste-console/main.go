// Posthaste-console is the console service. Master executes it when master.cf has that. It is a
// program of its own so that what it needs for HTTP is in no other process. See package console.
package main

import (
	"os"

	"posthaste/internal/console"
	"posthaste/internal/service"
)

func main() { os.Exit(service.Main(console.Spec(), os.Args[1:])) }
