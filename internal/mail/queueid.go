package mail

import (
	"errors"
	"math"
	"time"
)

// QueueID names a message for as long as it is in the queue. It is Postfix's
// long form: seconds since the epoch in base 52 (at least six characters),
// microseconds in base 52 (exactly four), the letter z, and a number in base
// 51. The alphabet is digits, then letters without vowels, z left out of the
// last part, so that the last z is where the number starts. With Postfix the
// number is an inode; here it is the spool's message number, which is never
// given twice, so an ID is unique whatever the clock does.
type QueueID string

const (
	alphabet      = "0123456789BCDFGHJKLMNPQRSTVWXYZbcdfghjklmnpqrstvwxyz" // 52; the first 51 for the number
	maxQueueIDLen = 64
)

var digitOf = func() (t [256]int8) {
	for i := range t {
		t[i] = -1
	}
	for i := 0; i < len(alphabet); i++ {
		t[alphabet[i]] = int8(i)
	}
	return t
}()

// MakeQueueID builds the ID of message number at time t. Times before 1970
// are taken as 1970.
func MakeQueueID(t time.Time, number uint64) QueueID {
	var b [32]byte
	return QueueID(appendQueueID(b[:0], t, number))
}

func appendQueueID(b []byte, t time.Time, number uint64) []byte {
	us := max(t.UnixMicro(), 0)
	b = appendBase(b, uint64(us/1e6), 52, 6)
	b = appendBase(b, uint64(us%1e6), 52, 4)
	b = append(b, 'z')
	return appendBase(b, number, 51, 1)
}

func appendBase(b []byte, v, base uint64, width int) []byte {
	var tmp [16]byte
	i := len(tmp)
	for v > 0 || len(tmp)-i < width {
		i--
		tmp[i] = alphabet[v%base]
		v /= base
	}
	return append(b, tmp[i:]...)
}

var errQueueID = errors.New("not a queue ID")

// Parse takes an ID apart. It fails for anything that MakeQueueID would not
// have built, Postfix's short IDs among them.
func (q QueueID) Parse() (t time.Time, number uint64, err error) {
	z := -1
	for i := len(q) - 1; i >= 0; i-- {
		if q[i] == 'z' {
			z = i
			break
		}
	}
	if z < 10 || len(q) > maxQueueIDLen {
		return time.Time{}, 0, errQueueID
	}
	sec, ok1 := parseBase(q[:z-4], 52)
	us, ok2 := parseBase(q[z-4:z], 52)
	number, ok3 := parseBase(q[z+1:], 51)
	if !ok1 || !ok2 || !ok3 || us >= 1e6 || sec > math.MaxInt64/1000000-1 {
		return time.Time{}, 0, errQueueID
	}
	t = time.Unix(int64(sec), int64(us)*1000)
	var b [32]byte
	if string(appendQueueID(b[:0], t, number)) != string(q) { // leading zeros: one message, one name
		return time.Time{}, 0, errQueueID
	}
	return t, number, nil
}

// Number is the message number in q, or 0 when q is not of our making: no
// message has number 0.
func (q QueueID) Number() uint64 {
	_, n, err := q.Parse()
	if err != nil {
		return 0
	}
	return n
}

// Valid says whether q could be a queue ID of any Postfix-like system, and
// is therefore safe in a log line and a file name: letters, digits and
// underscores, of bounded length.
func (q QueueID) Valid() bool {
	if len(q) == 0 || len(q) > maxQueueIDLen {
		return false
	}
	for i := 0; i < len(q); i++ {
		c := q[i]
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '_' {
			return false
		}
	}
	return true
}

func parseBase(s QueueID, base uint64) (v uint64, ok bool) {
	if len(s) == 0 {
		return 0, false
	}
	for i := 0; i < len(s); i++ {
		d := digitOf[s[i]]
		if d < 0 || uint64(d) >= base || v > (math.MaxUint64-uint64(d))/base {
			return 0, false
		}
		v = v*base + uint64(d)
	}
	return v, true
}
