// Package suppress is the suppress service, whose program is suppressd. It has the suppression list: the addresses that mail of a list must not go to
// any more, since it bounced or was complained of. It makes the return paths with which such mail
// leaves this system, and says of one that comes back for which message it was made (package returnpath).
//
// # Which mail it is about
//
// Mail is under the suppression list if its envelope sender is in suppress_list_maps, whose value is the name of a list, or
// if it is of a tenant in suppress_tenants. All other mail never is: a person who writes to an address that a list had to
// give up is not refused. Entries are of one list; or of a tenant, and then of all its mail or of one list of it; or, made by
// hand, of all mail under the suppression list. What a tenant's mail leads to holds for that tenant alone.
//
// # How entries come about
//
//   - A recipient of mail under the list fails for good, at once or by a report that comes back later, and the class of the
//     failure is in suppress_hard_classes.
//   - A failure of a class in suppress_soft_classes, on suppress_soft_bounces different days within
//     suppress_soft_bounce_time.
//   - A complaint.
//   - The recipient has unsubscribed (see the unsubscribe service): of all mail of the tenant, or of one list.
//   - posthaste suppress add, and import.
//
// Failures of other classes say something of this system, or of the message: no address is suppressed for them. Addresses are
// compared without regard to the case of ASCII letters; a domain of other letters is the same as its form in ASCII.
//
// # Durability
//
// The list is the file "list" in data_directory's suppress directory. What is answered is on stable storage. With
// return_path_domain each delivery is recorded there, in a file for each day, "sent.DAY", with some 150 octets; these
// files are removed after return_path_max_age. They are not synced: see returnpath for what remains without them. An import
// counts as a whole from one moment on, and takes no more memory than a few thousand entries. Of an entry that is there and
// one of the import a complaint counts more than that somebody has unsubscribed, that more than another reason, for ever
// more than for a time, and then the newer one; the same holds for an address that the import has twice. An
// import that begins while another has not ended takes its place, and the other fails as a whole.
//
// What came back in the last day is counted by provider and source (package standing), which the queue manager asks for. The file "returns"
// has the counts once a minute, and when the service ends.
//
// The list is looked at when the service starts. If it is damaged it is renamed to "list.damaged", with an error in the log,
// and a new one begins, which takes in what comes. It is not known then to whom mail must not go: mail under the list
// waits, for maximal_queue_lifetime at most, and other mail goes on. Nobody is told what is on the list, and an export fails. That ends with "posthaste suppress import" of the last
// export, or of an empty file, without -t and -l: an import for one tenant or one list says nothing of the others. Until
// then the log says so once an hour.
//
// # Security
//
// It runs as mail_owner, and only root and mail_owner can ask it. return_path_secret_file is opened before it gives up its
// rights. It never reads mail: the comeback service does, and tells what it has found. A return path speaks for one
// recipient, and of one the same news is taken once, however often it is repeated.
//
// # Parameters
//
// data_directory, return_path_domain, return_path_max_age, return_path_secret_file, suppress_bounce_lifetime,
// suppress_hard_classes, suppress_soft_bounce_time, suppress_soft_bounces, suppress_soft_classes.
//
// # Diagnostics
//
// "QUEUEID: to=<ADDRESS>, list=LIST, suppressed=REASON (DETAIL)": a new entry. "the suppression list was damaged, and is lost":
// see Durability. "tenant TENANT: N entries are not added to the suppression list, which has M of it": its programs want more
// than suppress_tenant_limit; said once an hour.
package suppress

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/metrics"
	"posthaste/internal/proto"
	"posthaste/internal/resolver"
	"posthaste/internal/returnpath"
	"posthaste/internal/service"
	"posthaste/internal/statedir"
	"posthaste/internal/suppress/suppressclient"
)

const (
	dirName    = "suppress" // in data_directory
	drainTime  = 5 * time.Second
	tidyEvery  = time.Hour
	mergeEvery = time.Second
	maxText    = 512 // octets of an entry's texts
	sayEvery   = time.Hour
	maxSaid    = 1000 // tenants
)

// Spec declares the service.
func Spec() service.Spec {
	return service.Spec{Process: "suppressd", Exclusive: true, Rank: service.Helper, Confines: true, Sandbox: service.Plain, Frugal: true, Run: run}
}

func run(ctx context.Context, env *service.Env) error {
	paths, err := suppressclient.ReadPaths(env.Config)
	if err != nil {
		return err
	}
	dir, err := statedir.Open(filepath.Join(env.Config.String("data_directory"), dirName))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := env.Confine(); err != nil {
		return err
	}
	s, err := newServer(env.Config, paths, dir, env.Log)
	if err != nil {
		return err
	}
	s.metrics = env.Metrics
	stop := s.tidyRegularly()
	err = env.ServeIPC(ctx, &ipc.Server{Handler: s.handle}, drainTime)
	stop()
	s.wg.Wait()
	return errors.Join(err, s.close())
}

// A server answers requests.
type server struct {
	rules   rules
	names   resolver.Names    // by which a domain of other letters is the one in ASCII
	paths   *returnpath.Coder // nil: mail leaves with the sender that it has
	store   *store
	records records
	log     *maillog.Logger
	metrics *metrics.Set // nil: nothing is counted
	now     func() time.Time
	wg      sync.WaitGroup
	back    *returns // what came back, by provider

	mu      sync.Mutex
	refused map[string]time.Time // when the log has said last that a tenant has too many entries
}

func newServer(cfg *config.Config, paths *returnpath.Coder, dir *statedir.Dir, log *maillog.Logger) (*server, error) {
	st, err := openStore(dir, log.Error)
	if err != nil {
		return nil, err
	}
	s := &server{rules: readRules(cfg), names: resolver.NamesOf(cfg), paths: paths, store: st, records: records{dir: dir}, log: log, now: time.Now}
	st.now = func() time.Time { return s.now() }
	s.back = openReturns(dir, log.Warning)
	return s, nil
}

func (s *server) close() error {
	s.records.close()
	return errors.Join(s.back.leave(), s.store.close())
}

// handle answers one request, on a goroutine of its own.
func (s *server) handle(_ *ipc.Conn, r *ipc.Request) {
	var do func() (ipc.Message, error)
	var err error
	switch r.Kind {
	case proto.KindSuppressAsk:
		q := new(proto.SuppressAsk)
		err, do = r.Decode(q), func() (ipc.Message, error) { return s.ask(q) }
	case proto.KindSuppressTell:
		q := new(proto.SuppressTell)
		err, do = r.Decode(q), func() (ipc.Message, error) { return s.tell(q) }
	case proto.KindReturnPath:
		q := new(proto.ReturnPath)
		err, do = r.Decode(q), func() (ipc.Message, error) { return s.returnPath(q) }
	case proto.KindSuppressChange:
		q := new(proto.SuppressChange)
		err, do = r.Decode(q), func() (ipc.Message, error) { return s.change(q) }
	case proto.KindSuppressPage:
		q := new(proto.SuppressPage)
		err, do = r.Decode(q), func() (ipc.Message, error) { return s.page(q) }
	case proto.KindStanding:
		do = func() (ipc.Message, error) { return &proto.StandingReply{Book: s.back.encode()}, nil }
	default:
		err = fmt.Errorf("suppress: unknown request %d", r.Kind)
	}
	if err != nil {
		r.Fail("%v", err)
		return
	}
	s.wg.Go(func() {
		reply, err := do()
		if err != nil {
			r.Fail("%v", err)
			return
		}
		r.Reply(reply)
	})
}

// checked is an address as entries have it.
func (s *server) checked(list, address string) (string, error) {
	if list != "" && !suppressclient.ValidScope(list) {
		return "", fmt.Errorf("%.100q is no name of a list", list)
	}
	if !suppressclient.ValidAddress(address) {
		return "", fmt.Errorf("%.100q is no mail address", address)
	}
	return suppressclient.Canonical(s.names, address), nil
}

// page is a part of the list, or what it has of one address.
func (s *server) page(q *proto.SuppressPage) (*proto.SuppressPageReply, error) {
	if q.Tenant != "" && !mail.GroupName(q.Tenant) {
		return nil, fmt.Errorf("%.100q is no name of a tenant", q.Tenant)
	}
	// What has come since it was lost is not to be taken for all of it: an export, which is made every night, would take the place
	// of the last one that has all.
	if s.store.lost.Load() {
		return nil, errLost
	}
	if q.Address == "" {
		return s.store.page(q)
	}
	address, err := s.checked("", q.Address)
	if err != nil {
		return nil, err
	}
	list, err := s.store.everywhere(q.Tenant, address)
	return &proto.SuppressPageReply{Entries: list}, err
}

// isFor says whether a return path was made for a recipient, in whatever form the domain is.
func (s *server) isFor(t *returnpath.Token, recipient string) bool {
	return t.IsFor(recipient) || t.IsFor(suppressclient.Canonical(s.names, recipient))
}

// ask says whether mail may go to an address. Mail that is about to go is recorded.
func (s *server) ask(q *proto.SuppressAsk) (*proto.SuppressAnswer, error) {
	address, err := s.checked(q.List, q.Address)
	if err != nil {
		return &proto.SuppressAnswer{}, nil // it is nobody's business here what else there is
	}
	if s.store.lost.Load() {
		return nil, errLost
	}
	now := s.now()
	reply := new(proto.SuppressAnswer)
	if reply.Entry, reply.Suppressed, err = s.store.find(q.List, address, now); err != nil || reply.Suppressed {
		return reply, err
	}
	if s.paths == nil || q.QueueID == "" || q.Sender == "" {
		return reply, nil
	}
	day := returnpath.Day(now)
	position, err := s.records.append(day, &sent{List: q.List, Sender: q.Sender, Recipient: q.Address, QueueID: q.QueueID, MessageID: q.MessageID, EnvID: q.EnvID,
		Provider: q.Provider, Source: q.Source, Tenant: q.Tenant, Campaign: q.Campaign})
	if err != nil {
		return nil, err
	}
	reply.Path = s.paths.Make(returnpath.Token{Day: day, Position: position, QueueID: q.QueueID}, address)
	return reply, nil
}

// recorded is what is recorded of the delivery that a token was made for, or the error is errNoRecord.
func (s *server) recorded(t *returnpath.Token) (rec sent, err error) {
	rec, err = s.records.read(t.Day, t.Position)
	// After a power cut another record may be in the place of one that was lost.
	if err == nil && (!s.isFor(t, rec.Recipient) || t.QueueID != "" && rec.QueueID != t.QueueID) {
		return sent{}, errNoRecord
	}
	return rec, err
}

// returnPath says for which message an address was made.
func (s *server) returnPath(q *proto.ReturnPath) (*proto.ReturnPathReply, error) {
	if s.paths == nil {
		return &proto.ReturnPathReply{Problem: "return_path_domain is not set"}, nil
	}
	t, err := s.paths.Parse(q.Address, s.now())
	if err != nil {
		return &proto.ReturnPathReply{Problem: err.Error()}, nil
	}
	reply := &proto.ReturnPathReply{QueueID: t.QueueID}
	rec, err := s.recorded(&t)
	if err != nil && !errors.Is(err, errNoRecord) {
		return nil, err
	}
	if err == nil {
		// Without a record here the token is another node's, perhaps, and one of ours has the same place.
		if reply.Bounced, reply.Complained, err = s.store.brought(t.Day, t.Position); err != nil {
			return nil, err
		}
		reply.Recorded, reply.Recipient, reply.QueueID = true, rec.Recipient, rec.QueueID
		reply.List, reply.Sender, reply.MessageID, reply.EnvID = rec.List, rec.Sender, rec.MessageID, rec.EnvID
		reply.Tenant, reply.Campaign, reply.Provider, reply.Source = rec.Tenant, rec.Campaign, rec.Provider, rec.Source
		return reply, nil
	}
	for _, r := range q.Recipients {
		if s.isFor(&t, r) {
			reply.Recipient = r
			break
		}
	}
	return reply, nil
}

// change changes the list, as an operator wants it.
func (s *server) change(q *proto.SuppressChange) (*proto.SuppressChanged, error) {
	if len(q.Entries) > proto.MaxSuppressions {
		return nil, fmt.Errorf("more than %d entries in a request", proto.MaxSuppressions)
	}
	for i := range q.Entries {
		e := &q.Entries[i]
		address, err := s.checked(e.List, e.Address)
		if err != nil {
			return nil, err
		}
		e.Address = address
		e.Reason, e.Origin, e.Detail = clean(e.Reason), clean(e.Origin), clean(e.Detail)
		if e.Time == 0 {
			e.Time = s.now().Unix()
		}
	}
	n, err := uint64(len(q.Entries)), error(nil)
	switch q.What {
	case proto.SuppressAdd:
		err = s.store.add(q.Entries)
	case proto.SuppressOffer:
		var full *fullError
		if n, err = s.store.offer(q.Entries, s.rules.most); errors.As(err, &full) {
			s.refuse(full.tenant, len(q.Entries))
			return &proto.SuppressChanged{Full: true}, nil
		}
	case proto.SuppressRemove:
		n, err = s.store.remove(q.Entries)
	case proto.SuppressBegin:
		err = s.store.begin(q.Import)
	case proto.SuppressStage:
		err = s.store.stage(q.Import, q.Entries)
	case proto.SuppressEnd:
		// A client that missed the answer asks again, and gets the same one.
		err = s.store.end(q.Import, q.Part)
		return &proto.SuppressChanged{Lost: s.store.lost.Load()}, err
	default:
		err = fmt.Errorf("suppress: unknown change %.20q", q.What)
	}
	return &proto.SuppressChanged{Count: n}, err
}

// refuse notes that entries of a tenant were refused. Programs try again, and the log has it once an hour of each tenant.
func (s *server) refuse(tenant string, n int) {
	s.metrics.AddSuppressRefused(tenant, n)
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.refused[tenant]; ok && now.Sub(last) < sayEvery && now.After(last.Add(-sayEvery)) {
		return
	}
	if s.refused == nil || len(s.refused) >= maxSaid {
		s.refused = make(map[string]time.Time)
	}
	s.refused[tenant] = now
	s.log.Warning("tenant %s: %d entries are not added to the suppression list, which has %d of it (suppress_tenant_limit)", tenant, n, s.rules.most)
}

// tidyRegularly puts imports in place and forgets what is too old, until it is stopped.
func (s *server) tidyRegularly() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(mergeEvery)
		defer t.Stop()
		var tidied time.Time
		for {
			if now := s.now(); now.Sub(tidied) >= tidyEvery {
				tidied = now
				s.warn(s.tidy(now))
				if s.store.lost.Load() {
					s.log.Error("%v", errLost)
				}
			}
			s.warn(s.back.keep(s.now()))
			more, err := s.store.merge()
			s.warn(err)
			if more && err == nil {
				select {
				case <-quit:
					return
				default:
					continue
				}
			}
			select {
			case <-t.C:
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

func (s *server) warn(err error) {
	if err != nil {
		s.log.Warning("%v", err)
	}
}

// tidy forgets what nobody will ask for any more.
func (s *server) tidy(now time.Time) error {
	day := returnpath.Day(now)
	old := day - 1
	if s.paths != nil {
		old = day - s.paths.MaxDays // those of before have expired
	}
	return errors.Join(s.records.forget(old), s.store.forget(old, day-s.rules.softDays))
}
