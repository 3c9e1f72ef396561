package sasl

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"strconv"
	"strings"
)

// scram is SCRAM-SHA-256, RFC 5802 and RFC 7677. In its -PLUS form it is bound
// to the TLS session, in one of the ways of binding.go.
type scram struct {
	users  *Users
	client Client
	plus   bool
	bound  []byte // what the way of binding that the client has chosen comes to

	step   int
	user   string
	known  bool
	secret Secret
	gs2    string // the client's header, which comes back in base64
	nonce  string
	first  string // client-first-message-bare "," server-first-message
	done   bool
}

func (s *scram) Username() string { return s.user }
func (s *scram) Close()           {}

func (s *scram) Next(ctx context.Context, response []byte) ([]byte, bool, error) {
	if response == nil {
		return []byte{}, false, nil
	}
	s.step++
	switch s.step {
	case 1:
		return s.clientFirst(ctx, string(response))
	case 2:
		return s.clientFinal(string(response))
	}
	// The server's proof went out as a challenge; the client's answer is
	// empty.
	if !s.done || len(response) > 0 {
		return nil, false, ErrMalformed
	}
	return nil, true, nil
}

func (s *scram) clientFirst(ctx context.Context, msg string) ([]byte, bool, error) {
	parts := strings.SplitN(msg, ",", 3)
	if len(parts) != 3 {
		return nil, false, ErrMalformed
	}
	flag, authz := parts[0], parts[1]
	switch {
	case s.plus:
		way, is := strings.CutPrefix(flag, "p=")
		if s.bound = s.client.binding(way); !is || s.bound == nil {
			return nil, false, &Failure{"unsupported channel binding"}
		}
	case flag == "y" && s.client.canBind():
		// The client thinks that we have no -PLUS, and we have: somebody in
		// between has taken it out of the list (RFC 5802 section 6).
		return nil, false, &Failure{"channel binding downgrade"}
	case flag != "n" && flag != "y":
		return nil, false, ErrMalformed
	}
	s.gs2 = flag + "," + authz + ","
	bare := parts[2]
	attrs := strings.Split(bare, ",")
	if len(attrs) < 2 || !strings.HasPrefix(attrs[0], "n=") || !strings.HasPrefix(attrs[1], "r=") {
		return nil, false, ErrMalformed // also "m=": extensions that we would have to know
	}
	user, ok := decodeName(attrs[0][2:])
	clientNonce := attrs[1][2:]
	if !ok || user == "" || clientNonce == "" || len(clientNonce) > 256 {
		return nil, false, ErrMalformed
	}
	if s.user, ok = prepare(user); !ok {
		return nil, false, errCredentials
	}
	if name, is := strings.CutPrefix(authz, "a="); authz != "" {
		if name, ok = decodeName(name); !is || !ok || !sameUser(name, s.user) {
			return nil, false, &Failure{"not authorized to act as another user"}
		}
	}
	var err error
	if s.secret, s.known, err = s.users.secret(ctx, s.user); err != nil {
		return nil, false, err
	}
	s.nonce = clientNonce + rand.Text()
	challenge := "r=" + s.nonce + ",s=" + base64.StdEncoding.EncodeToString(s.secret.Salt) + ",i=" + strconv.Itoa(s.secret.Iterations)
	s.first = bare + "," + challenge
	return []byte(challenge), false, nil
}

func (s *scram) clientFinal(msg string) ([]byte, bool, error) {
	i := strings.LastIndex(msg, ",p=")
	if i < 0 {
		return nil, false, ErrMalformed
	}
	withoutProof := msg[:i]
	proof, err := base64.StdEncoding.DecodeString(msg[i+3:])
	attrs := strings.Split(withoutProof, ",")
	if err != nil || len(proof) != sha256.Size || len(attrs) < 2 ||
		!strings.HasPrefix(attrs[0], "c=") || !strings.HasPrefix(attrs[1], "r=") {
		return nil, false, ErrMalformed
	}
	want := []byte(s.gs2)
	if s.plus {
		want = append(want, s.bound...)
	}
	bound, err := base64.StdEncoding.DecodeString(attrs[0][2:])
	if err != nil || !bytes.Equal(bound, want) {
		return nil, false, &Failure{"channel binding does not match"}
	}
	if subtle.ConstantTimeCompare([]byte(attrs[1][2:]), []byte(s.nonce)) != 1 {
		return nil, false, ErrMalformed
	}
	message := s.first + "," + withoutProof
	key := mac(s.secret.StoredKey, message)
	for i := range key {
		key[i] ^= proof[i]
	}
	stored := sha256.Sum256(key)
	if subtle.ConstantTimeCompare(stored[:], s.secret.StoredKey) != 1 || !s.known {
		return nil, false, errCredentials
	}
	s.done = true
	signature := mac(s.secret.ServerKey, message)
	return []byte("v=" + base64.StdEncoding.EncodeToString(signature)), false, nil
}

// decodeName undoes the quoting of "," and "=" in names, RFC 5802 section 5.1.
func decodeName(s string) (string, bool) {
	rest := s
	for {
		i := strings.IndexByte(rest, '=')
		if i < 0 {
			break
		}
		if !strings.HasPrefix(rest[i:], "=2C") && !strings.HasPrefix(rest[i:], "=3D") {
			return "", false
		}
		rest = rest[i+3:]
	}
	return strings.NewReplacer("=2C", ",", "=3D", "=").Replace(s), true
}
