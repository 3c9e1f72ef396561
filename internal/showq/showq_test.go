package showq

import (
	"bufio"
	"bytes"
	"testing"
	"time"

	"posthaste/internal/proto"
)

func TestItem(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		it   proto.Item
		want string
	}{
		{proto.Item{ID: "4aB", Queue: "deferred", Arrival: time.Unix(1700000000, 5), Size: 321, Sender: "a b@x.test",
			Recipients: []proto.ItemRcpt{{Address: "r@x.test", Reason: "no"}, {Address: "s@x.test"}, {Address: "t@x.test", Reason: "no", Waits: "suspended"}}},
			"queue_name|deferred|queue_id|4aB|time|1700000000|size|321|forced_expire|0|sender|\"a b\"@x.test|recipient|r@x.test|reason|no|recipient|s@x.test|reason||recipient|t@x.test|reason|suspended||"},
		// Nothing that a message has ends a value before its time, or begins another one.
		{proto.Item{ID: "4aC", Queue: "hold", Arrival: time.Unix(1, 0), ForcedExpire: true,
			Recipients: []proto.ItemRcpt{{Address: "r@x.test", Reason: "said\x00queue_name\x00active"}}},
			"queue_name|hold|queue_id|4aC|time|1|size|0|forced_expire|1|sender|MAILER-DAEMON|recipient|r@x.test|reason|said||"},
	} {
		var b bytes.Buffer
		w := writer{Writer: bufio.NewWriter(&b)}
		w.item(&c.it)
		if err := w.Flush(); err != nil || w.err != nil {
			t.Fatal(err, w.err)
		}
		if got := string(bytes.ReplaceAll(b.Bytes(), []byte{0}, []byte{'|'})); got != c.want {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
}
