package rpc

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cloud-sandbox/cloud-sandbox"
	nodev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/node/v1"
	sessionv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/session/v1"
)

// fill sets every field of v, at any depth, to a distinct nonzero value.
func fill(t *testing.T, v reflect.Value, n *int64) {
	t.Helper()
	*n++
	switch {
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(1700000000+*n, 123456000).UTC()))
		return
	case v.Type() == reflect.TypeFor[netip.Addr]():
		v.Set(reflect.ValueOf(netip.AddrFrom4([4]byte{1, 2, 3, byte(*n)})))
		return
	case v.Type() == reflect.TypeFor[time.Duration]():
		v.SetInt(*n * int64(time.Millisecond))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("text", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(*n)
	case reflect.Uint16, reflect.Uint32:
		v.SetUint(uint64(*n))
	case reflect.Uint8:
		v.SetUint(uint64(*n % 256))
	case reflect.Float64:
		v.SetFloat(float64(*n) / 2)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(t, v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(t, k, n)
		fill(t, e, n)
		v.SetMapIndex(k, e)
		if e.Kind() == reflect.Pointer { // nil means something there
			fill(t, k, n)
			v.SetMapIndex(k, reflect.Zero(e.Type()))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), n)
		}
	case reflect.Interface: // a stream, which is no value
	default:
		t.Fatalf("the test cannot fill a %s", v.Type())
	}
}

// over encodes and decodes a message.
func over[M proto.Message](t *testing.T, m M) M {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out := m.ProtoReflect().New().Interface().(M)
	if err := proto.Unmarshal(raw, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func roundTrip[T any](t *testing.T, trip func(T) T) {
	t.Helper()
	var zero, full T
	n := int64(0)
	fill(t, reflect.ValueOf(&full).Elem(), &n)
	for _, v := range []T{zero, full} {
		if got := trip(v); !reflect.DeepEqual(got, v) {
			t.Errorf("%T arrives as\n%+v, sent\n%+v", v, got, v)
		}
	}
}

func TestEveryFieldArrives(t *testing.T) {
	// MeteredAt is not sent: only a process with the store needs it.
	arrived := func(v sandbox.Sandbox) sandbox.Sandbox {
		got := toSandbox(over(t, fromSandbox(v)))
		got.MeteredAt = v.MeteredAt
		return got
	}
	roundTrip(t, arrived)
	roundTrip(t, func(v sandbox.CreateRequest) sandbox.CreateRequest { return toCreate(over(t, fromCreate(v))) })
	roundTrip(t, func(v sandbox.Change) sandbox.Change { return toChange(over(t, fromChange(v))) })
	roundTrip(t, func(v sandbox.ListQuery) sandbox.ListQuery { return toQuery(over(t, fromQuery(v))) })
	roundTrip(t, func(v sandbox.Snapshot) sandbox.Snapshot { return toSnapshot(over(t, fromSnapshot(v))) })
	roundTrip(t, func(v sandbox.VolumeFile) sandbox.VolumeFile { return toVolumeFile(over(t, fromVolumeFile(v))) })
	roundTrip(t, func(v sandbox.VolumeFileChange) sandbox.VolumeFileChange {
		return toFileChange(over(t, fromFileChange(v)))
	})
	// Neither is LeftOn.
	roundTrip(t, func(v sandbox.Volume) sandbox.Volume {
		got := toVolume(over(t, fromVolume(v)))
		got.LeftOn = v.LeftOn
		return got
	})
	roundTrip(t, func(v sandbox.ForkRequest) sandbox.ForkRequest { return toFork(over(t, fromFork(v))) })
	roundTrip(t, func(v sandbox.Page) sandbox.Page {
		got := toPage(over(t, fromPage(v)))
		for i := range got.Sandboxes {
			got.Sandboxes[i].MeteredAt = v.Sandboxes[i].MeteredAt
		}
		return got
	})
	roundTrip(t, func(v sandbox.BootEnd) sandbox.BootEnd {
		got := toEnd(over[*sessionv1.BootEndedRequest](t, fromEnd(v)))
		got.Node = v.Node // it is taken from the caller's token
		return got
	})
	roundTrip(t, func(v sandbox.StartRequest) sandbox.StartRequest { return toStart(over(t, fromStart("n", v))) })
	roundTrip(t, func(v sandbox.Template) sandbox.Template { return toTemplate(over(t, fromTemplate(v))) })
	roundTrip(t, func(v sandbox.TemplateRequest) sandbox.TemplateRequest { return toWanted(over(t, fromWanted(v))) })
	roundTrip(t, func(v sandbox.TemplateBuild) sandbox.TemplateBuild { return toBuild(over(t, fromBuild(v))) })
	roundTrip(t, func(v sandbox.Binding) sandbox.Binding { return toBinding(over(t, fromBinding(v))) })
	roundTrip(t, func(v sandbox.SaveRequest) sandbox.SaveRequest { return toSave(over(t, fromSave("n", v))) })
	roundTrip(t, func(v sandbox.Saved) sandbox.Saved { return toSaved(over(t, fromSaved(v))) })
	roundTrip(t, func(v sandbox.BootRef) sandbox.BootRef { return toRef(over(t, fromRef(v))) })
	roundTrip(t, func(v sandbox.BoundBoot) sandbox.BoundBoot { return toBoot(over(t, fromBoot(v))) })
	roundTrip(t, func(v sandbox.Usage) sandbox.Usage { return toUsage(over(t, fromUsage(v))) })
	roundTrip(t, func(v sandbox.NetworkLog) sandbox.NetworkLog { return toNetworkLog(over(t, fromNetworkLog(v))) })
	roundTrip(t, func(v sandbox.NodeStats) sandbox.NodeStats {
		return toStats(over[*nodev1.StatsResponse](t, fromStats(v)))
	})
}

// A failed fork arrives as its error, without causes.
func TestForksArrive(t *testing.T) {
	made := sandbox.Forked{Sandbox: sandbox.Sandbox{ID: "i1"}}
	if got := toForked(over(t, fromForked(made))); !reflect.DeepEqual(got, made) {
		t.Errorf("arrives as %+v", got)
	}
	for _, tt := range []struct {
		err  error
		want sandbox.Error
	}{
		{
			fmt.Errorf("x: %w", &sandbox.Error{Code: sandbox.Exhausted, Detail: "full", RetryAfter: time.Second, Cause: fmt.Errorf("secret")}),
			sandbox.Error{Code: sandbox.Exhausted, Detail: "full", RetryAfter: time.Second},
		},
		{fmt.Errorf("secret"), sandbox.Error{Code: sandbox.Internal, Detail: internalDetail}},
	} {
		got := toForked(over(t, fromForked(sandbox.Forked{Err: tt.err})))
		if e, ok := got.Err.(*sandbox.Error); !ok || *e != tt.want {
			t.Errorf("%v arrives as %v", tt.err, got.Err)
		}
	}
}
