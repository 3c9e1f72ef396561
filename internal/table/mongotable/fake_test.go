package mongotable

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// fake speaks as much of MongoDB's wire protocol as the driver needs for reading: the
// handshake, find and getMore. There is no server of MongoDB's in Debian. It keeps what it is
// asked, and answers what the test has laid out: it does not evaluate filters.
type fake struct {
	t    *testing.T
	addr string
	l    net.Listener

	mu      sync.Mutex
	finds   []bson.D // what was asked, the newest last
	answer  func(n int, find bson.D) []bson.D
	batch   int // documents in one reply
	more    map[int64][]bson.D
	open    []net.Conn
	endless bool // a find is answered by a message that never ends
	taken   int
	wg      sync.WaitGroup
}

// newFake starts a server whose finds answer finds: n counts them from 0.
func newFake(t *testing.T, answer func(n int, find bson.D) []bson.D) *fake {
	t.Helper()
	f := &fake{t: t, answer: answer, batch: 100, more: make(map[int64][]bson.D)}
	f.listen("127.0.0.1:0")
	t.Cleanup(f.stop)
	return f
}

func (f *fake) listen(addr string) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		f.t.Fatal(err)
	}
	f.l, f.addr = l, l.Addr().String()
	f.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.open = append(f.open, c)
			f.mu.Unlock()
			f.wg.Go(func() {
				defer c.Close()
				for f.serve(c) == nil {
				}
			})
		}
	})
}

// stop ends all connections and waits for those who served them.
func (f *fake) stop() {
	f.l.Close()
	f.mu.Lock()
	for _, c := range f.open {
		c.Close()
	}
	f.open = nil
	f.mu.Unlock()
	f.wg.Wait()
}

func (f *fake) asked() []bson.D {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]bson.D(nil), f.finds...)
}

const (
	opReply = 1
	opQuery = 2004
	opMsg   = 2013
)

// serve answers one request.
func (f *fake) serve(c net.Conn) error {
	var head [16]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	le := binary.LittleEndian
	size, id, op := le.Uint32(head[:]), le.Uint32(head[4:]), le.Uint32(head[12:])
	if size < 16 || size > 1<<20 {
		return fmt.Errorf("a message of %d octets", size)
	}
	body := make([]byte, size-16)
	if _, err := io.ReadFull(c, body); err != nil {
		return err
	}
	var document []byte
	switch op {
	case opQuery: // flags, the collection's name, two numbers, the document
		i := 4
		for body[i] != 0 {
			i++
		}
		document = body[i+9:]
	case opMsg: // flags, a section of kind 0
		document = body[5:]
	default:
		return fmt.Errorf("operation %d", op)
	}
	var command bson.D
	if err := bson.Unmarshal(document, &command); err != nil {
		return err
	}
	reply, err := bson.Marshal(f.command(command))
	if err != nil {
		return err
	}
	var out []byte
	if op == opQuery {
		out = make([]byte, 16+20, 16+20+len(reply))
		le.PutUint32(out[32:], 1)
		le.PutUint32(out[12:], opReply)
	} else {
		out = make([]byte, 16+5, 16+5+len(reply))
		le.PutUint32(out[12:], opMsg)
	}
	out = append(out, reply...)
	le.PutUint32(out, uint32(len(out)))
	le.PutUint32(out[8:], id)
	if f.endless && command[0].Key == "find" {
		return f.flood(c, out)
	}
	_, err = c.Write(out)
	return err
}

// flood sends a message that says that it is as long as the driver lets one be, and goes on.
func (f *fake) flood(c net.Conn, out []byte) error {
	binary.LittleEndian.PutUint32(out, 48000000)
	piece := make([]byte, 64<<10)
	for {
		n, err := c.Write(out)
		f.mu.Lock()
		f.taken += n
		f.mu.Unlock()
		if err != nil {
			return err
		}
		out = piece
	}
}

func field(d bson.D, name string) any {
	for _, e := range d {
		if e.Key == name {
			return e.Value
		}
	}
	return nil
}

// command is the answer to a command.
func (f *fake) command(c bson.D) bson.D {
	f.mu.Lock()
	defer f.mu.Unlock()
	cursor := func(name string, documents []bson.D) bson.D {
		var id int64
		if len(documents) > f.batch {
			id = int64(len(f.more) + 1)
			documents, f.more[id] = documents[:f.batch], documents[f.batch:]
		}
		if documents == nil {
			documents = []bson.D{}
		}
		return bson.D{{Key: "cursor", Value: bson.D{{Key: "id", Value: id}, {Key: "ns", Value: "mail.alias"}, {Key: name, Value: documents}}}, {Key: "ok", Value: 1}}
	}
	switch c[0].Key {
	case "isMaster", "ismaster", "hello":
		return bson.D{{Key: "ismaster", Value: true}, {Key: "isWritablePrimary", Value: true}, {Key: "helloOk", Value: true}, {Key: "maxBsonObjectSize", Value: 16 << 20},
			{Key: "maxMessageSizeBytes", Value: 48000000}, {Key: "maxWriteBatchSize", Value: 100000}, {Key: "minWireVersion", Value: 0}, {Key: "maxWireVersion", Value: 21},
			{Key: "readOnly", Value: false}, {Key: "ok", Value: 1}}
	case "find":
		f.finds = append(f.finds, c)
		answer := f.answer(len(f.finds)-1, c)
		if answer == nil {
			return bson.D{{Key: "ok", Value: 0}, {Key: "errmsg", Value: "not authorized on mail"}, {Key: "code", Value: 13}, {Key: "codeName", Value: "Unauthorized"}}
		}
		return cursor("firstBatch", answer)
	case "getMore":
		id, _ := c[0].Value.(int64)
		rest := f.more[id]
		delete(f.more, id)
		return cursor("nextBatch", rest)
	}
	return bson.D{{Key: "ok", Value: 1}} // killCursors, endSessions, ping
}
