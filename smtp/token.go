// OAuth tokens in place of passwords, and where they come from.

package smtp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"posthaste/internal/smallfile"
	"posthaste/internal/subprocess"
)

// tokens gives out the tokens of OAUTHBEARER and XOAUTH2, which are good for
// an hour or so: from a file that another program renews, or from a command,
// smtp_sasl_token_command, whose answer is kept for a while. All methods may
// be called concurrently.
type tokens struct {
	command []string      // and its arguments; empty: none
	life    time.Duration // smtp_sasl_token_time

	mu    sync.Mutex
	users map[string]*token // by user; mu guards the map, not what is in it
}

// token is what is known of one user's.
type token struct {
	mu    sync.Mutex // is held while the command runs: it runs once for all who wait
	text  string     // empty before the first run
	err   error      // of the latest run; asked for again after tokenRetry
	until time.Time  // until when text or err counts
}

const (
	tokenTime  = 30 * time.Second // that the command may take
	tokenRetry = 10 * time.Second // after a run that failed: deliveries must not run it all at once
	tokenEarly = time.Minute      // before a token expires: it must live through the login
	maxToken   = 64 << 10         // octets of a token, or of what the command says
	maxUsers   = 10000            // whose tokens are kept: with a table, users may be any number
)

// newTokens makes the tokens of a process. Without a command only passwords that
// are tokens, or name a file, can be had.
func newTokens(command []string, life time.Duration) *tokens {
	return &tokens{command: command, life: life, users: make(map[string]*token)}
}

// get gives the token that a password stands for: an empty one for what the
// command says, file:PATH for the file's content, anything else for itself.
// kept says that it is not fresh: when it is refused, a renewed one may not be.
func (k *tokens) get(ctx context.Context, user, pass, host string, now time.Time) (text string, kept bool, err error) {
	if path, ok := strings.CutPrefix(pass, "file:"); ok {
		text, err = readToken(path)
		return text, false, err
	}
	if pass != "" {
		return pass, false, nil
	}
	if len(k.command) == 0 {
		return "", false, errors.New("the password is empty, and there is no smtp_sasl_token_command")
	}
	t := k.of(user)
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Before(t.until) {
		return t.text, true, t.err
	}
	var life time.Duration
	t.text, life, t.err = k.run(ctx, user, host)
	switch {
	case t.err != nil:
		t.until = now.Add(tokenRetry)
	case life > 0:
		// A token that lives for less than tokenEarly is not kept at all.
		t.until = now.Add(min(k.life, life-tokenEarly))
	default:
		t.until = now.Add(k.life)
	}
	return t.text, false, t.err
}

// of is the place of a user's token, made when it is first asked for.
func (k *tokens) of(user string) *token {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.users[user]
	if t == nil {
		if len(k.users) >= maxUsers {
			clear(k.users) // the command runs once more for each
		}
		t = new(token)
		k.users[user] = t
	}
	return t
}

// forget has a token that was refused renewed, unless that has been done: several
// deliveries may have been refused the same one.
func (k *tokens) forget(user, refused string) {
	t := k.of(user)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text == refused {
		t.until = time.Time{}
	}
}

// run asks the command. Its answer is the token alone, or JSON as an OAuth server
// gives it (RFC 6749 section 5.1); life is how long that says it is good, 0 if it
// does not. The command gets the user and the host in its environment, and what it
// says on standard error is in the error's text.
func (k *tokens) run(ctx context.Context, user, host string) (text string, life time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, tokenTime)
	defer cancel()
	cmd := subprocess.New(ctx, k.command...)
	cmd.Env = append(os.Environ(), "SASL_USER="+user, "SMTP_HOST="+host)
	out, complaint := subprocess.Output{Most: maxToken, Refuse: true}, subprocess.Output{Most: maxToken}
	cmd.Stdout, cmd.Stderr = &out, &complaint
	switch err := cmd.Run(); {
	case out.Over:
		return "", 0, fmt.Errorf("smtp_sasl_token_command: %s: %w", k.command[0], errLongToken)
	case ctx.Err() != nil:
		return "", 0, fmt.Errorf("smtp_sasl_token_command: %s has not ended: %w", k.command[0], ctx.Err())
	case err != nil:
		line, _, _ := bytes.Cut(complaint.Text, []byte("\n"))
		return "", 0, fmt.Errorf("smtp_sasl_token_command: %w: %s", err, printable(clip(line, 200)))
	}
	if text = strings.TrimSpace(string(out.Text)); strings.HasPrefix(text, "{") {
		var reply struct {
			Token string `json:"access_token"`
			Life  int64  `json:"expires_in"`
		}
		if err := json.Unmarshal(out.Text, &reply); err != nil {
			return "", 0, fmt.Errorf("smtp_sasl_token_command: %w", err)
		}
		text, life = reply.Token, time.Duration(min(max(reply.Life, 0), 1<<31))*time.Second
	}
	// Line ends and 0x01 are the separators of the messages that the token is put
	// into.
	if text == "" || strings.ContainsAny(text, "\r\n\x01") {
		return "", 0, errors.New("smtp_sasl_token_command: the output is not a token")
	}
	return text, life, nil
}

// readToken reads the token in a file. It is read for each login, as another
// program renews it.
func readToken(path string) (string, error) {
	b, err := smallfile.Read(path, maxToken)
	if long := new(smallfile.LongError); errors.As(err, &long) {
		err = fmt.Errorf("%s: %w", path, errLongToken)
	}
	return strings.TrimSpace(string(b)), err
}

// errLongToken is an answer that cannot be a token.
var errLongToken = errors.New("the answer is over 64 KB: it is no token")
