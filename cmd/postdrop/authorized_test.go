package main

import (
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/whoami"
)

// Who may submit mail is on the list, root as well as others: an empty list is for nobody.
func TestAuthorized(t *testing.T) {
	t.Parallel()
	me := whoami.Name()
	for list, want := range map[string]bool{
		"static:anyone": true, "": false, me: true, "!" + me + ", static:anyone": false, "somebody-else": false, "static:anyone, !" + me: true,
		"inline:{" + me + "=x}": true, "inline:{somebody-else=x}": false,
	} {
		cfg, err := config.LoadString("authorized_submit_users = " + list + "\n")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := authorized(cfg); got != want || err != nil {
			t.Errorf("%q: %v, %v", list, got, err)
		}
	}
}
