package smtpd

import (
	"io"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
)

// With spool_content_directory the queue's file system needs room for what goes there, and the
// other one is asked about when a client says that its message is large.
func TestRoom(t *testing.T) {
	t.Parallel()
	const content = "spool_content_directory = /c\n"
	for _, tt := range []struct {
		main    string
		queue   int64 // that has to be free
		free    int64 // on the other one
		size    int64 // that the client says
		refused bool
	}{
		{"message_size_limit = 10000000\n", 15000000, 0, 5000000, false},
		{"message_size_limit = 10000000\nqueue_minfree = 20000000\n", 20000000, 0, 5000000, false},
		{"message_size_limit = 10000000\n" + content, 196608, 14999999, 131073, true},
		{"message_size_limit = 10000000\n" + content, 196608, 15000000, 131073, false},
		{"message_size_limit = 10000000\n" + content, 196608, 0, 131072, false},
		{"message_size_limit = 10000000\n" + content, 196608, 0, 0, false},
		{"message_size_limit = 1000\n" + content, 1500, 0, 900, false},
		{"message_size_limit = 0\n" + content, 196608, 0, 5000000, false},
		{"message_size_limit = 0\nqueue_minfree = 1000000\n" + content, 1000000, 999999, 5000000, true},
	} {
		cfg, err := config.LoadString(tt.main)
		if err != nil {
			t.Fatal(err)
		}
		set := &settings{messageLimit: cfg.Bytes("message_size_limit"), inlineLimit: cfg.Bytes("spool_inline_limit")}
		set.setNeeds(cfg)
		s := &session{srv: &Server{log: maillog.New("smtpd", maillog.NewWriter(io.Discard, maillog.Classic))}, set: set}
		if cfg.String("spool_content_directory") != "" {
			s.srv.contentFree = func() (int64, error) { return tt.free, nil }
		}
		s.tx.mail.Size = tt.size
		if got := !s.roomForLarge(); set.queueNeed != tt.queue || got != tt.refused {
			t.Errorf("%q, SIZE=%d: the queue needs %d, want %d; refused %v, want %v", tt.main, tt.size, set.queueNeed, tt.queue, got, tt.refused)
		}
	}
}
