package events

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/event"
	"posthaste/internal/eventjournal"
	"posthaste/internal/smallfile"
)

const (
	// maxSecret bounds a file with a secret, and minSecret the key in it.
	maxSecret = 4096
	minSecret = 16
	// maxCAFile bounds a file with certificates.
	maxCAFile = 4 << 20
	// maxReply is how much of a reply is read, and maxReason how much of it is logged.
	maxReply  = 64 << 10
	maxReason = 200
)

// A webhook posts events to a URL.
type webhook struct {
	url     string
	lines   bool
	timeout time.Duration
	key     []byte // of the signature; empty: there is none
	agent   string
	client  *http.Client
	now     func() time.Time
}

// newWebhook reads what a webhook needs.
func newWebhook(s *event.Sink, version string) (*webhook, error) {
	w := &webhook{url: s.Target, lines: s.Lines, timeout: s.Timeout, agent: "Posthaste/" + version, now: time.Now}
	if s.SecretFile != "" {
		text, err := smallfile.Read(s.SecretFile, maxSecret)
		if err == nil {
			w.key, err = secret(string(text))
		}
		if err != nil {
			return nil, fmt.Errorf("secret_file: %w", err)
		}
	}
	conf, err := tlsConfig(s.CAFile)
	if err != nil {
		return nil, err
	}
	w.client = &http.Client{
		Transport:     &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true, DisableCompression: true, MaxResponseHeaderBytes: 32 << 10, MaxIdleConns: 1, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return w, nil
}

// secret takes a key: in base64 behind whsec_, as Standard Webhooks writes it, or the text itself.
func secret(text string) ([]byte, error) {
	text = strings.TrimSpace(text)
	key := []byte(text)
	if coded, ok := strings.CutPrefix(text, "whsec_"); ok {
		var err error
		if key, err = base64.StdEncoding.DecodeString(coded); err != nil {
			return nil, errors.New("what follows whsec_ is not base64")
		}
	}
	if len(key) < minSecret {
		return nil, fmt.Errorf("the secret has fewer than %d octets", minSecret)
	}
	return key, nil
}

// tlsConfig is that of a client that trusts the authorities in a file; empty: those of the system.
func tlsConfig(caFile string) (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile == "" {
		return conf, nil
	}
	text, err := smallfile.Read(caFile, maxCAFile)
	if err != nil {
		return nil, fmt.Errorf("tls_CAfile: %w", err)
	}
	conf.RootCAs = x509.NewCertPool()
	if !conf.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("tls_CAfile: %s has no certificate", caFile)
	}
	return conf, nil
}

// body gives the events as a list, or a line each.
func (w *webhook) body(list []eventjournal.Entry) []byte {
	var b []byte
	for i := range list {
		switch {
		case w.lines:
			b = append(append(b, list[i].JSON...), '\n')
		case i == 0:
			b = append(append(b, '['), list[i].JSON...)
		default:
			b = append(append(b, ','), list[i].JSON...)
		}
	}
	if !w.lines {
		b = append(b, ']')
	}
	return b
}

// send implements carrier.
func (w *webhook) send(ctx context.Context, list []eventjournal.Entry) error {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	body := w.body(list)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	w.sign(req.Header, body)
	resp, err := w.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("no reply after %v", w.timeout)
		}
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	switch {
	case resp.StatusCode/100 == 2: // whatever the body is
		return nil
	case err != nil:
		return err
	}
	return judge(resp, text)
}

// sign sets the headers. The identifier is that of the body: it is the same when the request is repeated.
func (w *webhook) sign(h http.Header, body []byte) {
	sum := sha256.Sum256(body)
	id := "msg_" + hex.EncodeToString(sum[:16])
	now := strconv.FormatInt(w.now().Unix(), 10)
	h.Set("Content-Type", "application/json")
	if w.lines {
		h.Set("Content-Type", "application/x-ndjson")
	}
	h.Set("User-Agent", w.agent)
	h.Set("webhook-id", id)
	h.Set("webhook-timestamp", now)
	if len(w.key) > 0 {
		h.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(signature(w.key, id, now, body)))
	}
}

// signature is that of Standard Webhooks.
func signature(key []byte, id, now string, body []byte) []byte {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.", id, now)
	mac.Write(body)
	return mac.Sum(nil)
}

// judge says what a reply that is no success means.
func judge(resp *http.Response, text []byte) error {
	reason := "the server said " + resp.Status
	if line := strings.TrimSpace(string(text[:min(len(text), maxReason)])); line != "" {
		reason += ": " + strings.ToValidUTF8(line, "?")
	}
	code := resp.StatusCode
	if code/100 == 4 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests {
		return &refusal{reason}
	}
	if pause := retryAfter(resp.Header.Get("Retry-After"), time.Now()); pause > 0 {
		return &later{reason, pause}
	}
	return errors.New(reason)
}

// retryAfter reads a field Retry-After (RFC 9110 section 10.2.3); 0: there is none that makes sense.
func retryAfter(value string, now time.Time) time.Duration {
	if n, err := strconv.Atoi(value); err == nil && n > 0 {
		return time.Duration(min(n, int(longestPause/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// close implements carrier.
func (w *webhook) close() error {
	w.client.CloseIdleConnections()
	return nil
}
