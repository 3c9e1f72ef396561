package sasl

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"
)

// A TokenVerifier says whose token a token is. It may be used concurrently.
type TokenVerifier interface {
	// Verify returns the name of the user. A *Failure says that the token is not good; any other
	// error that nobody knows.
	Verify(ctx context.Context, token string, now time.Time) (user string, err error)
}

// bearer is OAUTHBEARER, RFC 7628, and XOAUTH2, which it was made from: the
// client shows a token, by which somebody else says who it is.
type bearer struct {
	tokens TokenVerifier
	old    bool // XOAUTH2
	user   string
	// permits says whether the user whom a token has named may come in; nil: everybody may.
	permits func(ctx context.Context, user string) error
	failure error // told when the client has heard the server's words
}

func (b *bearer) Username() string { return b.user }
func (b *bearer) Close()           {}

// invalidToken is what the client is sent in place of a refusal, which it gets
// when it has answered (RFC 7628 section 3.2.3).
const (
	invalidToken    = `{"status":"invalid_token"}`
	invalidTokenOld = `{"status":"401","schemes":"Bearer"}`
)

func (b *bearer) Next(ctx context.Context, response []byte) ([]byte, bool, error) {
	if b.failure != nil {
		return nil, false, b.failure
	}
	if response == nil {
		return []byte{}, false, nil
	}
	name, token, ok := b.parse(response)
	if !ok {
		return nil, false, ErrMalformed
	}
	user, err := b.tokens.Verify(ctx, token, time.Now())
	if err == nil && b.permits != nil {
		err = b.permits(ctx, user)
	}
	var refused *Failure
	switch {
	case err != nil && !errors.As(err, &refused):
		b.user = name // as claimed
		return nil, false, err
	case err != nil:
		b.user = name
		b.failure = err
	case name != "" && name != user:
		b.user = user
		b.failure = &Failure{"not authorized to act as another user"}
	default:
		b.user = user
		return nil, true, nil
	}
	if b.old {
		return []byte(invalidTokenOld), false, nil
	}
	return []byte(invalidToken), false, nil
}

// parse takes the client's message apart: pairs of names and values that
// control-A ends, behind a GS2 header except with XOAUTH2.
func (b *bearer) parse(message []byte) (user, token string, ok bool) {
	text, whole := bytes.CutSuffix(message, []byte("\x01\x01"))
	if !whole {
		return "", "", false
	}
	fields := strings.Split(string(text), "\x01")
	if !b.old {
		flag, authz, found := strings.Cut(strings.TrimSuffix(fields[0], ","), ",")
		if !found || flag != "n" && flag != "y" || !strings.HasSuffix(fields[0], ",") {
			return "", "", false
		}
		if authz != "" {
			name, is := strings.CutPrefix(authz, "a=")
			if user, ok = decodeName(name); !is || !ok {
				return "", "", false
			}
		}
		fields = fields[1:]
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, "=")
		switch {
		case name == "user" && b.old:
			user = value
		case name == "auth":
			scheme, t, _ := strings.Cut(value, " ")
			if !strings.EqualFold(scheme, "Bearer") || token != "" {
				return "", "", false
			}
			token = strings.TrimSpace(t)
		}
	}
	return user, token, token != ""
}
