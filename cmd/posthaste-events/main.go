// Posthaste-events is the events service, which keeps what becomes of mail, and sends it to files, webhooks and
// Kafka. Master executes it when master.cf has that. It is a program of its own so that what it needs for that is
// in no other process. See package events.
package main

import (
	"os"

	"posthaste/internal/events"
	"posthaste/internal/service"
)

func main() { os.Exit(service.Main(events.Spec(), os.Args[1:])) }
