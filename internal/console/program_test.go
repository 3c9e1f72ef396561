package console

import (
	"net/http"
	"strings"
	"testing"

	"posthaste/internal/apitoken"
)

// A program with a token of its own may do what the token's role says, and who it was is in the log.
func TestProgramToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	store, err := apitoken.Open(t.TempDir(), w.console.now)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	w.console.programs = store
	tokens := map[string]string{"none": "pht_none"}
	for _, role := range []string{apitoken.Look, apitoken.Operate, apitoken.Inject} {
		if tokens[role], err = store.Add(apitoken.Token{Name: role, Roles: []string{role}, Senders: []string{"*"}}); err != nil {
			t.Fatal(err)
		}
	}
	call := func(method, path, token string) int {
		req, err := http.NewRequest(method, w.server.URL+apiPath+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for role, want := range map[string][2]int{"none": {401, 401}, apitoken.Look: {200, 403}, apitoken.Operate: {200, 200}, apitoken.Inject: {401, 401}} {
		w.take()
		got := [2]int{call("GET", "/suspensions", tokens[role]), call("POST", "/messages/"+queueID+"/hold", tokens[role])}
		if got != want {
			t.Errorf("%s: %d, want %d", role, got, want)
		}
		events, _ := w.take()
		if log := strings.Join(events, "\n"); strings.Contains(log, "user=token/operate client=127.0.0.1: hold") != (role == apitoken.Operate) {
			t.Errorf("%s: logged %q", role, log)
		}
	}
}
