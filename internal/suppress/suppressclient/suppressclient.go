// Package suppressclient asks the suppress service, which has the suppression list and makes and reads return paths,
// and knows which mail is under that list ([Lists]).
package suppressclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"posthaste/internal/bounceclass"
	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/table"
)

// Name is the name of the service in master.cf.
const Name = "suppress"

// patience is how long the service may take for a question, which costs it one or two reads, and
// changeTime for a change of the list, which may have to wait for an import to be put in place.
const (
	patience   = 10 * time.Second
	changeTime = 10 * time.Minute
	// restTime is how long a service that has not answered in that time is not asked: each delivery would wait for it, and
	// keep its agent from others. Then one call finds out whether it answers again.
	restTime = 10 * time.Second
)

// errSilent is the answer to all further questions meanwhile.
var errSilent = errors.New("it has not answered, and is not asked now")

// A Client asks the service. Its methods may be called concurrently. An error says that nothing is known, or, of a
// change, that it may have been carried out or not.
//
// A service that does not answer costs one wait, and not one for each question: see restTime.
type Client struct {
	ipc caller

	mu     sync.Mutex
	silent bool      // it has not answered
	again  time.Time // when it is asked next
}

// A caller is the part of ipc.Client that is needed.
type caller interface {
	CallAgain(ctx context.Context, q, reply ipc.Message) error
	Close()
}

// New makes a client of the service at that address.
func New(at ipc.Address) *Client { return &Client{ipc: ipc.NewClient(at, nil)} }

// ErrFull says that a tenant would have more entries than suppress_tenant_limit. Nothing was changed.
var ErrFull = errors.New("the tenant has as many entries as it may have")

// ErrLost says that an import counts, and that the list is lost all the same: it was for one list or one tenant, and
// nobody has said what else is to be on the list.
var ErrLost = errors.New("the suppression list is still lost")

// Close closes the connection.
func (c *Client) Close() { c.ipc.Close() }

func (c *Client) call(ctx context.Context, limit time.Duration, q, reply ipc.Message) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := c.ipc.CallAgain(ctx, q, reply); err != nil {
		return fmt.Errorf("suppress service: %w", err)
	}
	return nil
}

// ask is call for what mail waits for.
func (c *Client) ask(ctx context.Context, q, reply ipc.Message) error {
	if !c.mayAsk(time.Now()) {
		return fmt.Errorf("suppress service: %w", errSilent)
	}
	err := c.call(ctx, patience, q, reply)
	// That the caller gives up says nothing of the service. An error that is quick is an answer, or there is no service.
	if err == nil || ctx.Err() == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.silent = errors.Is(err, context.DeadlineExceeded); c.silent {
			c.again = time.Now().Add(restTime)
		}
	}
	return err
}

// mayAsk says whether the service is asked now. Of those who come when it has rested one is told so.
func (c *Client) mayAsk(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.silent && now.Before(c.again) {
		return false
	}
	c.again = now.Add(patience + restTime)
	return true
}

// Ask asks whether mail may go to an address, and with which sender.
func (c *Client) Ask(ctx context.Context, q *proto.SuppressAsk) (reply proto.SuppressAnswer, err error) {
	err = c.ask(ctx, q, &reply)
	return reply, err
}

// Tell tells of a bounce or a complaint. What has come of it is durable when it returns without an error.
func (c *Client) Tell(ctx context.Context, q *proto.SuppressTell) (reply proto.SuppressTold, err error) {
	err = c.ask(ctx, q, &reply)
	return reply, err
}

// ReturnPath asks for which message an address was made.
func (c *Client) ReturnPath(ctx context.Context, q *proto.ReturnPath) (reply proto.ReturnPathReply, err error) {
	err = c.ask(ctx, q, &reply)
	return reply, err
}

// Change changes the list.
func (c *Client) Change(ctx context.Context, q *proto.SuppressChange) (n uint64, err error) {
	var reply proto.SuppressChanged
	err = c.call(ctx, changeTime, q, &reply)
	switch {
	case err != nil:
	case reply.Full:
		err = ErrFull
	case reply.Lost:
		err = ErrLost
	}
	return reply.Count, err
}

// Page gives a part of the list.
func (c *Client) Page(ctx context.Context, q *proto.SuppressPage) (reply proto.SuppressPageReply, err error) {
	err = c.call(ctx, changeTime, q, &reply)
	return reply, err
}

// Lists says which mail is under the suppression list: that of the senders in suppress_list_maps, and of the tenants in
// suppress_tenants. The nil Lists has none. Its methods may be called concurrently.
type Lists struct {
	maps    *table.Maps
	tenants *table.List
	search  table.Search
}

// OpenLists opens the tables; nil when no mail is under the suppression list. An error is one of suppress_tenants.
func OpenLists(cfg *config.Config, o table.Options) (*Lists, error) {
	if !Enabled(cfg) {
		return nil, nil
	}
	tenants, err := table.NewList("suppress_tenants", cfg.List("suppress_tenants"), table.ListOptions{Kind: table.Strings, Table: o})
	if err != nil {
		return nil, err
	}
	maps := table.OpenMaps("suppress_list_maps", cfg.List("suppress_list_maps"), o)
	return &Lists{maps, tenants, table.Search{Delimiters: cfg.String("recipient_delimiter")}}, nil
}

// Of is the scope of a tenant's mail with a sender; empty: it is not under the suppression list. The sender is in internal
// form, the tenant may be empty. An error is that of a table, or of a value that is no name of a list.
func (l *Lists) Of(ctx context.Context, tenant, sender string) (scope string, err error) {
	if l == nil || sender == "" {
		return "", nil
	}
	list, err := l.named(ctx, sender)
	if err != nil || tenant == "" {
		return list, err
	}
	ours, err := l.tenants.Match(ctx, tenant)
	if err != nil || !ours {
		return list, err
	}
	return Scope(tenant, list), nil
}

// named is the list that suppress_list_maps has for a sender.
func (l *Lists) named(ctx context.Context, sender string) (list string, err error) {
	value, _, found, err := l.maps.LookupAddress(ctx, &l.search, sender, table.KeyFull|table.KeyBare|table.KeyAtDomain)
	if err != nil || !found || strings.EqualFold(value, "DUNNO") {
		return "", err
	}
	if !ValidList(value) {
		return "", fmt.Errorf("%s: %s: %.100q is no name of a list", l.maps.Title(), sender, value)
	}
	return value, nil
}

// Close closes the tables.
func (l *Lists) Close() error {
	if l == nil {
		return nil
	}
	return l.maps.Close() // a match list has nothing to close
}

// maxList is how long the name of a list may be, in octets.
const maxList = 64

// ValidList says whether a text is the name of a list: letters, digits, ".", "-" and "_".
func ValidList(name string) bool {
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(".-_", c) >= 0) {
			return false
		}
	}
	return name != "" && len(name) <= maxList
}

// ClassFiles are the files by which failures are classified: bounce_class_files, or the rules of the program itself
// where who is suppressed depends on them.
func ClassFiles(cfg *config.Config) []string {
	files := cfg.List("bounce_class_files")
	if len(files) == 0 && Enabled(cfg) {
		files = []string{bounceclass.Builtin}
	}
	return files
}
