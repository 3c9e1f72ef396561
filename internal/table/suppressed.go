package table

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
)

const (
	// suppressTime is how long the suppress service may take, which it costs one or two reads.
	suppressTime = 10 * time.Second
	// suppressRest is how long it is not asked when it has not answered in that time: each client would wait for it.
	suppressRest = 10 * time.Second
)

// suppressedTable is the suppression list, as mail of a scope is under it: who is on it, with the reason as
// the value. It is asked by way of the suppress service, which has the list open.
type suppressedTable struct {
	scope  string
	client *ipc.Client
	again  atomic.Int64 // when it is asked next, in nanoseconds since 1970
}

// openSuppressed opens suppress:LIST, suppress:TENANT/, suppress:TENANT/LIST, or suppress:* for the entries that hold for all
// mail under the list.
func openSuppressed(name string, o Options) (Table, error) {
	if tenant, list, ok := strings.Cut(name, "/"); name != "*" && (!mail.GroupName(tenant) || ok && list != "" && !mail.GroupName(list)) {
		return nil, errors.New("expected a list, TENANT/, TENANT/LIST or *")
	}
	proxy := o.Proxy
	if proxy == "" {
		proxy = DefaultProxy
	}
	path := filepath.Join(filepath.Dir(proxy), "suppress")
	return &suppressedTable{scope: strings.TrimPrefix(name, "*"), client: ipc.NewClient(ipc.Unix(path), nil)}, nil
}

func (t *suppressedTable) Lookup(ctx context.Context, key string) (string, bool, error) {
	// Of the parts of an address, which the callers of all tables ask for, none is on the list.
	if at := strings.LastIndexByte(key, '@'); at < 1 || at == len(key)-1 {
		return "", false, nil
	}
	if time.Now().UnixNano() < t.again.Load() {
		return "", false, errors.New("the suppress service has not answered, and is not asked now")
	}
	// The mail system's own keys are in internal form; those that people look up may be quoted.
	if key[0] == '"' {
		if internal, ok := rfc5322.Mailbox(key); ok {
			key = internal
		}
	}
	limited, cancel := context.WithTimeout(ctx, suppressTime)
	defer cancel()
	var reply proto.SuppressAnswer
	if err := t.client.CallAgain(limited, &proto.SuppressAsk{List: t.scope, Address: key}, &reply); err != nil {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			t.again.Store(time.Now().Add(suppressRest).UnixNano())
		}
		return "", false, fmt.Errorf("suppress service: %w", err)
	}
	return reply.Entry.Reason, reply.Suppressed, nil
}

// Pattern is false: it has keys.
func (t *suppressedTable) Pattern() bool { return false }

func (t *suppressedTable) Close() error {
	t.client.Close()
	return nil
}
