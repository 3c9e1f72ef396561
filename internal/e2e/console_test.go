package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"posthaste/internal/sasl"
)

// The console of a real mail system: an operator logs in, sees what waits, resumes it, and it is
// delivered; who did it is in the log. The history of the queue begins with the service, which is
// woken up by its line of master.cf.
func TestConsole(t *testing.T) {
	t.Parallel()
	if err := buildAside("posthaste-console"); err != nil {
		t.Fatal(err)
	}
	secret, err := sasl.NewSecret("secret of ann")
	if err != nil {
		t.Fatal(err)
	}
	next := newSink(t, nil)
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	s := newSystem(t, options{main: next.relayhost() + "console_listen = " + address + "\nconsole_user_maps = inline:{ { ann = " + strings.ReplaceAll(secret.String(), "$", "$$") + " } }\nconsole_operators = ann\nmaillog_file_permissions = 0644\n",
		master: "console unix - - n 60 1 console\n"})
	call := func(method, path, token, body string, into any) int {
		req, err := http.NewRequest(method, "http://"+address+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0 // it is being started
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			t.Errorf("%s: %v\n%s", path, err, text)
		}
		return resp.StatusCode
	}
	var login struct{ Token string }
	s.eventually("somebody can log in", func() bool {
		return call("POST", "/api/v1/session", "", `{"user": "ann", "password": "secret of ann"}`, &login) == 200
	})
	var done struct{ Done string }
	if status := call("POST", "/api/v1/suspensions", login.Token, `{"target": "slow.test", "reason": "ticket 4711"}`, &done); status != 200 {
		t.Fatalf("suspend: %d\n%s", status, s.log())
	}
	s.mustSend("ann@from.test", []string{"joe@slow.test"}, "Subject: x\n\nbody\n")
	s.waitLog(`to=<joe@slow\.test>,.*status=deferred \(delivery to slow\.test is suspended: ticket 4711\)`)
	var list struct {
		Messages []struct {
			ID string `json:"queue_id"`
		}
	}
	if status := call("GET", "/api/v1/messages?domain=slow.test", login.Token, "", &list); status != 200 || len(list.Messages) != 1 {
		t.Fatalf("%d %+v", status, list)
	}
	var found struct {
		Messages []struct{ State string }
	}
	if status := call("GET", "/api/v1/search?q=joe@slow.test", login.Token, "", &found); status != 200 || len(found.Messages) != 1 || found.Messages[0].State != "deferred" {
		t.Errorf("%d %+v", status, found)
	}
	if out, status := s.tool(nil, "top", "-1"); status != 0 || !strings.Contains(out, "slow.test: suspended by ann (console); 1 recipient waits, the oldest for ") || !strings.Contains(out, "by ann (console) since") {
		t.Errorf("top: %d\n%s", status, out)
	}
	// The first sample is of the start, and a time that is asked for has whole seconds: the present one begins before it
	// in its first second.
	s.eventually("qshape shows the first sample", func() bool {
		out, status := s.tool(nil, "qshape", "--at", time.Now().Format(time.DateTime), "deferred")
		return status == 0 && strings.Contains(out, "TOTAL  0")
	})
	if status := call("POST", "/api/v1/suspensions/resume", login.Token, `{"target": "slow.test"}`, &done); status != 200 {
		t.Errorf("resume: %d", status)
	}
	s.waitLog(list.Messages[0].ID + `: to=<joe@slow\.test>,.*status=sent`)
	hop := strings.TrimSpace(strings.TrimPrefix(next.relayhost(), "relayhost = "))
	if status := call("POST", "/api/v1/limits", login.Token, `{"target": "`+hop+`", "limit": "2", "reason": "ticket 4712"}`, &done); status != 200 {
		t.Errorf("limit: %d %+v", status, done)
	}
	s.waitLog(`qmgr\[\d+\]: delivery to ` + regexp.QuoteMeta(hop) + ` limited to 2 at a time by ann \(console\): ticket 4712`)
	var destination struct {
		Limits       []struct{ Limit int }
		Destinations []struct {
			Sessions int
			Replies  []struct {
				Percent  int
				Accepted bool
			}
		}
	}
	if status := call("GET", "/api/v1/destinations/"+url.PathEscape(hop), login.Token, "", &destination); status != 200 || len(destination.Limits) != 1 || destination.Limits[0].Limit != 2 ||
		len(destination.Destinations) != 1 || destination.Destinations[0].Sessions != 1 || destination.Destinations[0].Replies[0].Percent != 100 || !destination.Destinations[0].Replies[0].Accepted {
		t.Errorf("%d %+v", status, destination)
	}
	var system struct {
		Problems []string
		Disks    []struct{ Free int64 }
		Spool    struct{ Segments int }
		Log      struct{ Written time.Time }
		Advice   struct{ Mistakes, Differences []string }
	}
	if status := call("GET", "/api/v1/system", login.Token, "", &system); status != 200 || len(system.Disks) == 0 || system.Disks[0].Free <= 0 || system.Spool.Segments < 1 ||
		time.Since(system.Log.Written) > time.Hour || len(system.Advice.Differences) == 0 {
		t.Errorf("%d %+v", status, system)
	}
	s.waitLog(`console\[\d+\]: user=ann client=127\.0\.0\.1: resume slow\.test`)
	s.waitLog(`qmgr\[\d+\]: delivery to slow\.test suspended by ann \(console\): ticket 4711`)
}
