package pickup

import (
	"context"
	"net"
	"os"
	"os/user"
	"strconv"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/maildrop"
	"posthaste/internal/proto"
	"posthaste/internal/service"
	"posthaste/internal/submit"
)

// parallel is how many messages are on their way to cleanup at once.
const parallel = 20

// Spec declares the service.
func Spec() service.Spec {
	return service.Spec{Process: "pickup", Exclusive: true, Rank: service.Intake, Sandbox: service.Plain, Frugal: true, Run: run}
}

func run(ctx context.Context, env *service.Env) error {
	cfg := env.Config
	client := ipc.NewClient(env.Public(cfg.String("cleanup_service_name")), nil)
	defer client.Close()
	submitter := submit.New(client)
	defer submitter.Close()
	p := New(Options{
		Dir:        "maildrop",
		Submit:     submitter,
		Log:        env.Log,
		Myhostname: cfg.String("myhostname"),
		MailName:   cfg.String("mail_name"),
		Filter:     cfg.String("content_filter"),
		Override:   proto.OverrideFlags(cfg.List("receive_override_options")),
		AutoUTF8:   proto.AutoUTF8(cfg.List("smtputf8_autodetect_classes"), "sendmail"),
		Owner:      ownerUID(cfg.String("mail_owner")),
		Parallel:   parallel,
		Slow:       len(cfg.List("non_smtpd_milters")) > 0,
	})
	wake := make(chan struct{}, 1)
	wake <- struct{}{}
	offers := make(chan struct{}, parallel)
	server := &ipc.Server{
		OnTrigger: func([]byte) {
			select {
			case wake <- struct{}{}:
			default:
			}
		},
		Raw: map[byte]func(net.Conn, int){maildrop.OfferFirst: func(c net.Conn, uid int) {
			select {
			case offers <- struct{}{}:
				defer func() { <-offers }()
			default:
				return // enough in hand: it goes into the directory
			}
			defer env.Busy()()
			p.offered(ctx, c, uid)
		}},
	}
	serving := make(chan error, 1)
	go func() { serving <- env.ServeIPC(ctx, server, time.Second) }()
	env.Used()
	for {
		select {
		case <-wake:
			done := env.Busy()
			if err := p.Scan(ctx); err != nil {
				env.Log.Warning("%v", err)
			}
			done()
		case <-ctx.Done():
			return <-serving
		}
	}
}

// ownerUID is the number of the user whose files are the mail system's own.
func ownerUID(name string) int {
	u, err := user.Lookup(name)
	if err != nil {
		return os.Geteuid()
	}
	n, err := strconv.Atoi(u.Uid)
	if err != nil {
		return os.Geteuid()
	}
	return n
}
