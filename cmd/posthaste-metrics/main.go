// Posthaste-metrics is the service that publishes the mail system's metrics.
// Master executes it when metrics_listen is set. See package exporter for why
// it is a program of its own.
package main

import (
	"os"

	"posthaste/internal/exporter"
	"posthaste/internal/service"
)

func main() { os.Exit(service.Main(exporter.Spec(), os.Args[1:])) }
