// Package sendlimit is the sendlimit service, which limits how many recipients an account may send
// to: whoever has stolen a password can do no more harm than that. smtpd(8) asks it at each
// recipient of a client that has logged in, by whatever smtpd_sasl_type, if
// account_recipient_limit or account_recipient_limit_maps is set.
//
// Limits are rates such as 500/d or 100/h. They count from the full hour, or from midnight UTC for
// a day. A recipient beyond a limit is refused with 450, so that a user's mail program can try
// again later. With account_limit_lock the account is locked: everything is refused with 550 until
// "posthaste account unlock". The postmaster gets one notice about it (error_notice_recipient, if
// notify_classes has the class resource). "posthaste account usage" shows what counts.
//
// Login names are compared without regard to letter case. One without a domain is the same account as
// one with that of smtpd_sasl_local_domain, by which it may log in as well; tables are asked for both. Mail that users hand to sendmail(1) is
// not limited: it comes from no account.
//
// # Durability
//
// The counts are written to the file "sent" in data_directory's sendlimit directory once a second
// where they have changed, at the end, and at once when an account is locked or unlocked. A process
// that is killed forgets the recipients of a second.
//
// # Security
//
// It runs as mail_owner, and only root and mail_owner can ask it. The names of accounts come from
// backends that have verified a password; their length and number are bounded.
//
// # Parameters
//
// account_limit_lock, account_recipient_limit, account_recipient_limit_maps, data_directory,
// error_notice_recipient, notify_classes, smtpd_sasl_local_domain.
//
// # Diagnostics
//
// "account NAME: the limit of 500/d recipients is exceeded": once for each span of a limit.
package sendlimit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/proto"
	"posthaste/internal/rate"
	"posthaste/internal/service"
	"posthaste/internal/statedir"
	"posthaste/internal/submit"
	"posthaste/internal/table"
)

const (
	fileName  = "sent"          // in the directory
	dirName   = "sendlimit"     // in data_directory
	maxName   = 512             // octets of an account's name
	maxCount  = 1_000_000       // recipients of one request
	saveEvery = time.Second     // how often the counts are written
	drainTime = 5 * time.Second // how long clients may take when the service stops
)

// Spec declares the service.
func Spec() service.Spec {
	return service.Spec{Process: "sendlimit", Exclusive: true, Rank: service.Helper, Confines: true, Sandbox: service.Plain, Frugal: true, Run: run}
}

func run(ctx context.Context, env *service.Env) error {
	cfg := env.Config
	limits, err := readLimits(cfg, env.Tables())
	if err != nil {
		return err
	}
	defer limits.maps.Close()
	dir, err := statedir.Open(filepath.Join(cfg.String("data_directory"), dirName))
	if err != nil {
		return err
	}
	defer dir.Close()
	s := &server{limits: limits, lock: cfg.Bool("account_limit_lock"), log: env.Log, dir: dir, now: time.Now}
	if s.ledger, err = readLedger(dir); err != nil {
		return err
	}
	if err := env.Confine(); err != nil {
		return err
	}
	client := ipc.NewClient(env.Public(cfg.String("cleanup_service_name")), nil)
	defer client.Close()
	submitter := submit.New(client)
	defer submitter.Close()
	mailer := notice.New(cfg, submitter, env.Log)
	stopping := service.Stopping(ctx)
	s.tell = func(subject, text string) {
		s.wg.Go(func() { mailer.Tell(stopping, notice.Resource, subject, text) })
	}
	stop := s.saveRegularly()
	err = env.ServeIPC(ctx, &ipc.Server{Handler: s.handle}, drainTime)
	stop()
	s.wg.Wait()
	return errors.Join(err, s.save())
}

// readLedger reads the counts of before.
func readLedger(dir *statedir.Dir) (*ledger, error) {
	text, err := dir.ReadFile(fileName)
	if errors.Is(err, fs.ErrNotExist) {
		return newLedger(), nil
	}
	var l *ledger
	if err == nil {
		l, err = parseLedger(text)
	}
	if err != nil {
		return nil, fmt.Errorf("%s/%s: %w; remove it to count from 0", dirName, fileName, err)
	}
	return l, nil
}

// limits are the limits of accounts. Its methods may be called concurrently.
type limits struct {
	all   []rate.Rate
	maps  *table.Maps
	realm string // "@" and smtpd_sasl_local_domain, in lower case; empty: it is not set
}

// readLimits reads them.
func readLimits(cfg *config.Config, o table.Options) (*limits, error) {
	all, err := rate.ParseList(cfg.String("account_recipient_limit"))
	if err != nil {
		return nil, fmt.Errorf("account_recipient_limit: %w", err)
	}
	realm := strings.ToLower(cfg.String("smtpd_sasl_local_domain"))
	if realm != "" {
		realm = "@" + realm
	}
	return &limits{all, table.OpenMaps("account_recipient_limit_maps", cfg.List("account_recipient_limit_maps"), o), realm}, nil
}

// account is the name by which an account counts, however its user has logged in.
func (l *limits) account(name string) string {
	if name = strings.ToLower(name); name != "" && !strings.Contains(name, "@") {
		name += l.realm
	}
	return name
}

// of are the limits of an account. An error is that of a table.
func (l *limits) of(ctx context.Context, name string) ([]rate.Rate, error) {
	value, found, err := l.maps.Lookup(ctx, name, false)
	if bare, local := strings.CutSuffix(name, l.realm); err == nil && !found && local && bare != name {
		value, found, err = l.maps.Lookup(ctx, bare, false)
	}
	if err != nil || !found {
		return l.all, err
	}
	list, err := rate.ParseList(value)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", l.maps.Title(), name, err)
	}
	return list, nil
}

// A server answers requests.
type server struct {
	limits *limits
	lock   bool // account_limit_lock
	log    *maillog.Logger
	dir    *statedir.Dir
	now    func() time.Time
	tell   func(subject, text string) // mails the postmaster, without waiting
	wg     sync.WaitGroup

	mu      sync.Mutex
	ledger  *ledger
	changed bool // since it was written

	// saving is held while the file is written, which has one writer at a time.
	saving sync.Mutex
}

func (s *server) handle(_ *ipc.Conn, r *ipc.Request) {
	var err error
	switch r.Kind {
	case proto.KindSpend:
		q := new(proto.Spend)
		if err = r.Decode(q); err == nil && (q.Account == "" || len(q.Account) > maxName || q.Count < 1 || q.Count > maxCount) {
			err = errors.New("sendlimit: malformed request")
		}
		if err == nil {
			s.wg.Go(func() { answer(r, func() (ipc.Message, error) { return s.spend(q) }) })
			return
		}
	case proto.KindUsage:
		q := new(proto.Usage)
		if err = r.Decode(q); err == nil {
			s.wg.Go(func() { answer(r, func() (ipc.Message, error) { return s.usage(q) }) })
			return
		}
	default:
		err = fmt.Errorf("sendlimit: unknown request %d", r.Kind)
	}
	r.Fail("%v", err)
}

func answer(r *ipc.Request, f func() (ipc.Message, error)) {
	reply, err := f()
	if err != nil {
		r.Fail("%v", err)
		return
	}
	r.Reply(reply)
}

// lookupTime bounds the lookup of an account's limits.
const lookupTime = 5 * time.Second

func (s *server) of(name string) ([]rate.Rate, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
	defer cancel()
	return s.limits.of(ctx, name)
}

// spend counts recipients.
func (s *server) spend(q *proto.Spend) (*proto.SpendReply, error) {
	name := s.limits.account(q.Account)
	list, err := s.of(name)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	o := s.ledger.spend(name, list, int64(q.Count), s.lock, s.now())
	s.changed = s.changed || len(list) > 0
	s.mu.Unlock()
	if o.refused && !o.exceeded.IsZero() {
		s.exceeded(name, q.Client, o)
	}
	return &proto.SpendReply{Refused: o.refused, Locked: o.locked, Limit: o.exceeded.String(), Until: o.until}, nil
}

// exceeded makes known that an account has exceeded a limit, once.
func (s *server) exceeded(name, client string, o outcome) {
	if o.locked {
		if err := s.save(); err != nil {
			s.log.Warning("%v", err)
		}
	}
	if !o.tell {
		return
	}
	what := fmt.Sprintf("account %s: the limit of %s recipients is exceeded, last by %s", name, o.exceeded, client)
	then := "Mail to more recipients is refused until " + time.Unix(o.until, 0).UTC().Format("2006-01-02 15:04 UTC") + "."
	if o.locked {
		what += "; the account is locked"
		then = "The account is locked: all its mail is refused, until \"posthaste account unlock " + name + "\"."
	}
	s.log.Warning("%s", what)
	s.tell("Sending limit of account "+name+" exceeded", "The account "+name+" has sent to as many recipients as it may: "+o.exceeded.String()+
		" (account_recipient_limit).\nThe last client was "+client+".\n\n"+then+
		"\nIf the user has not sent all that mail, somebody else has the password: change it\n(posthaste account passwd), and look for the mail in the queue (posthaste queue).\n")
}

// usage says what accounts have sent, and unlocks one.
func (s *server) usage(q *proto.Usage) (*proto.UsageReply, error) {
	reply := new(proto.UsageReply)
	name := s.limits.account(q.Account)
	names := []string{name}
	if name == "" {
		s.mu.Lock()
		s.ledger.sweep(s.now())
		names = s.ledger.names()
		s.mu.Unlock()
	}
	if len(names) > proto.MaxUsage {
		names, reply.More = names[:proto.MaxUsage], true
	}
	for _, n := range names {
		list, err := s.of(n)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		reply.Accounts = append(reply.Accounts, s.ledger.usage(n, list, s.now()))
		s.mu.Unlock()
	}
	if q.Unlock && name != "" {
		s.mu.Lock()
		s.ledger.unlock(name)
		s.changed = true
		s.mu.Unlock()
		if err := s.save(); err != nil {
			return nil, err
		}
	}
	return reply, nil
}

// saveRegularly writes the counts now and then, until it is stopped.
func (s *server) saveRegularly() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(saveEvery)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				if err := s.save(); err != nil {
					s.log.Warning("%v", err)
				}
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

// save writes the counts durably, if they have changed.
func (s *server) save() error {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	if !s.changed {
		s.mu.Unlock()
		return nil
	}
	s.changed = false
	s.ledger.sweep(s.now())
	text, err := s.ledger.text()
	s.mu.Unlock()
	if err == nil {
		err = s.dir.ReplaceDurably(fileName, text)
	}
	if err != nil {
		s.mu.Lock()
		s.changed = true
		s.mu.Unlock()
		return fmt.Errorf("%s/%s: %w", dirName, fileName, err)
	}
	return nil
}
