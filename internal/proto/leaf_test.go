package proto

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
)

// A leaf is a field of a message that has no fields of its own, however deep.
type leaf struct {
	path string // Submit.Envelope.Client.Name; [] is an element of a list
	kind string // of its value: text, octets, number, flag, time, real
	get  func(root reflect.Value) reflect.Value
}

// octets says whether t is a []byte, which is one value and no list.
func octets(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8
}

// leavesOf lists what a message is made of. get makes what is on the way to a leaf, and nothing else.
func leavesOf(t testing.TB, m ipc.Message) (list []leaf) {
	typ := reflect.TypeOf(m).Elem()
	var walk func(t reflect.Type, path string, get func(reflect.Value) reflect.Value)
	walk = func(typ reflect.Type, path string, get func(reflect.Value) reflect.Value) {
		switch kind := kindOf(typ); {
		case kind != "":
			list = append(list, leaf{path, kind, get})
		case typ.Kind() == reflect.Pointer:
			walk(typ.Elem(), path, func(root reflect.Value) reflect.Value {
				v := get(root)
				if v.IsNil() {
					v.Set(reflect.New(typ.Elem()))
				}
				return v.Elem()
			})
		case typ.Kind() == reflect.Slice:
			walk(typ.Elem(), path+"[]", func(root reflect.Value) reflect.Value {
				v := get(root)
				if v.Len() == 0 {
					v.Set(reflect.MakeSlice(typ, 1, 1))
				}
				return v.Index(0)
			})
		case typ.Kind() == reflect.Array:
			for i := range typ.Len() {
				walk(typ.Elem(), fmt.Sprintf("%s[%d]", path, i), func(root reflect.Value) reflect.Value { return get(root).Index(i) })
			}
		case typ.Kind() == reflect.Struct:
			for i := range typ.NumField() {
				if f := typ.Field(i); f.IsExported() {
					walk(f.Type, path+"."+f.Name, func(root reflect.Value) reflect.Value { return get(root).Field(i) })
				}
			}
		default:
			t.Fatalf("%s: no test knows how to set a %s", path, typ)
		}
	}
	walk(typ, typ.Name(), func(root reflect.Value) reflect.Value { return root })
	return list
}

// kindOf is what a value of this type is; "" when it consists of others.
func kindOf(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Time]():
		return "time"
	case reflect.TypeFor[dsn.Status]():
		return "status"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "flag"
	case reflect.String:
		return "text"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "integer"
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "unsigned"
	case reflect.Float64:
		return "real"
	}
	if octets(t) {
		return "octets"
	}
	return ""
}

// set gives a leaf a value that is not zero, and for different n a different one where that is possible.
func (l *leaf) set(root reflect.Value, n int) {
	v := l.get(root)
	switch l.kind {
	case "time":
		v.Set(reflect.ValueOf(time.UnixMicro(1700000000000000 + int64(n))))
	case "status":
		v.Set(reflect.ValueOf(dsn.S(5, uint16(n%1000), 1)))
	case "flag":
		v.SetBool(true)
	case "text":
		if v.Type() == reflect.TypeFor[mail.QueueID]() {
			v.SetString(string(mail.MakeQueueID(time.Unix(1700000000, 0), uint64(n))))
		} else {
			v.SetString(fmt.Sprint("text", n))
		}
	case "integer":
		v.SetInt(int64(n))
	case "unsigned":
		v.SetUint(uint64(1 + n%100))
	case "real":
		v.SetFloat(float64(n) + .5)
	case "octets":
		v.SetBytes(fmt.Append(nil, "octets", n))
	}
}

// full is a message of m's type in which no field is zero, and each list has an element.
func full(t testing.TB, m ipc.Message) ipc.Message {
	got := fresh(m)
	for i, l := range leavesOf(t, m) {
		l.set(reflect.ValueOf(got).Elem(), i+1)
	}
	return got
}

// companions are what a message must have for a field to make sense: what begins with the first
// is not sent, or not taken, without the second.
var companions = [][2]string{
	{"Submit.", "Submit.Envelope.ID"}, // an envelope without an ID is refused
	{"Deliver.", "Deliver.Envelope.ID"},
	{"LocateReply.Entry.", "LocateReply.Found"},
	{"RecordReply.Refused[].Reason", "RecordReply.Refused[].ID"},
	{"MilterReply.Verdict.Reply.", "MilterReply.Verdict.Reply.Code"},
	{"ListReply.Items[].Ref.", "ListReply.Items[].Ref.Segno"}, // which says that there is a Ref
	{"ShapeReply.Unread[].Ref.", "ShapeReply.Unread[].Ref.Segno"},
	{"SelectReply.Items[].Ref.", "SelectReply.Items[].Ref.Segno"},
}

// alone is a message of m's type with nothing but leaf i, and what that must have beside it.
func alone(t testing.TB, m ipc.Message, list []leaf, i int) ipc.Message {
	got := fresh(m)
	root := reflect.ValueOf(got).Elem()
	list[i].set(root, i+1)
	for _, c := range companions {
		if !strings.HasPrefix(list[i].path, c[0]) {
			continue
		}
		for k := range list {
			if list[k].path == c[1] {
				list[k].set(root, k+1)
			}
		}
	}
	return got
}

// same says whether two messages say the same: a list without elements is none.
func same(a, b ipc.Message) bool {
	return reflect.DeepEqual(tidy(reflect.ValueOf(a).Elem()), tidy(reflect.ValueOf(b).Elem()))
}

// tidy is a message with nil for each list that is empty.
func tidy(v reflect.Value) any {
	c := reflect.New(v.Type()).Elem()
	c.Set(v)
	tidyIn(c)
	return c.Interface()
}

func tidyIn(v reflect.Value) {
	switch {
	case !v.CanSet() || v.IsZero():
	case v.Kind() == reflect.Slice && v.Len() == 0:
		v.SetZero()
	case v.Kind() == reflect.Slice && !octets(v.Type()):
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(c, v)
		v.Set(c)
		for i := range v.Len() {
			tidyIn(v.Index(i))
		}
	case v.Kind() == reflect.Pointer:
		c := reflect.New(v.Type().Elem())
		c.Elem().Set(v.Elem())
		v.Set(c)
		tidyIn(c.Elem())
	case v.Kind() == reflect.Struct && kindOf(v.Type()) == "":
		for i := range v.NumField() {
			tidyIn(v.Field(i))
		}
	}
}
