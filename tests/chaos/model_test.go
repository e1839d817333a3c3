package chaos

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

const box = "box"

// script builds a history. Without during, each operation begins after the one before has
// ended.
type script struct {
	at  time.Duration
	all []Operation
}

func (s *script) add(kind Kind, in Input, out Output) *script {
	in.Kind, in.Sandbox = kind, box
	s.all = append(s.all, Operation{In: in, Out: out, Call: s.at + 1, Return: s.at + 9})
	s.at += 10
	return s
}

// during has the operation before last until n operations after it have ended.
func (s *script) during(n int) *script {
	s.all[len(s.all)-1].Return += time.Duration(n) * 10
	return s
}

func (s *script) create() *script { return s.add(Create, Input{}, Output{}) }
func (s *script) memory(id int, list string) *script {
	return s.add(AddMemory, Input{ID: id}, Output{List: list})
}

func (s *script) file(id int, list string) *script {
	return s.add(AddFile, Input{ID: id}, Output{List: list})
}

func (s *script) unknown(kind Kind, id int) *script {
	return s.add(kind, Input{ID: id}, Output{Unknown: true})
}

func (s *script) get(state string, name, timeline int) *script {
	return s.add(Get, Input{}, Output{State: state, Name: name, Timeline: timeline})
}
func (s *script) take(id string) *script { return s.add(Take, Input{}, Output{Snapshot: id}) }
func (s *script) back(id string) *script { return s.add(Rollback, Input{Snapshot: id}, Output{}) }
func (s *script) unknownBack(id string) *script {
	return s.add(Rollback, Input{Snapshot: id}, Output{Unknown: true})
}
func (s *script) beat(list string) *script { return s.add(Beat, Input{}, Output{List: list}) }
func (s *script) done(kind Kind) *script   { return s.add(kind, Input{}, Output{}) }

func (s *script) gone(kind Kind) *script { return s.add(kind, Input{}, Output{Gone: true}) }

func TestModel(t *testing.T) {
	for _, tt := range []struct {
		name  string
		s     *script
		legal bool
	}{
		{"counters grow", new(script).create().memory(1, " 1").file(2, " 2").memory(3, " 1 3").get(running, 0, 1), true},
		{"an increment is lost after its answer", new(script).create().memory(1, " 1").memory(2, " 2"), false},
		{"a line of the file is lost after its answer", new(script).create().file(1, " 1").add(ReadFile, Input{}, Output{}), false},
		{"an increment is done twice", new(script).create().memory(1, " 1").memory(2, " 1 1 2"), false},
		{"an increment takes effect before it is asked for", new(script).create().add(ReadMemory, Input{}, Output{List: " 1"}).memory(1, " 1"), false},
		{"concurrent increments in the other order", new(script).create().memory(1, " 2 1").during(1).memory(2, " 2"), true},

		{"no answer, and it took effect", new(script).create().unknown(AddMemory, 1).memory(2, " 1 2"), true},
		{"no answer, and it did not", new(script).create().unknown(AddMemory, 1).memory(2, " 2"), true},
		{"no answer, and it took effect later", new(script).create().unknown(AddMemory, 1).memory(2, " 2").memory(3, " 2 1 3"), true},
		{"no answer, and it came and went", new(script).create().unknown(AddMemory, 1).memory(2, " 1 2").memory(3, " 2 3"), false},
		{"no answer, and it took effect twice", new(script).create().unknown(AddFile, 1).file(2, " 1 2").file(3, " 1 2 1 3"), false},

		{"a name", new(script).create().add(Rename, Input{ID: 1}, Output{}).get(running, 1, 1), true},
		{"a name is lost", new(script).create().add(Rename, Input{ID: 1}, Output{}).get(running, 0, 1), false},
		{"a name without an answer", new(script).create().unknown(Rename, 1).get(running, 0, 1).get(running, 1, 1), true},
		{"a name that comes and goes", new(script).create().unknown(Rename, 1).get(running, 1, 1).get(running, 0, 1), false},

		{"paused", new(script).create().done(Pause).get(paused, 0, 1).done(Resume).get(running, 0, 1), true},
		{"paused, and it runs unasked", new(script).create().done(Pause).get(running, 0, 1), false},
		{"a request resumes", new(script).create().memory(1, " 1").done(Pause).memory(2, " 1 2").get(running, 0, 1), true},
		{"a pause loses memory", new(script).create().memory(1, " 1").done(Pause).memory(2, " 2"), false},
		{"paused unasked", new(script).create().get(paused, 0, 1), false},
		{"a pause without an answer", new(script).create().unknown(Pause, 0).get(running, 0, 1).get(paused, 0, 1), true},
		{"a resume without an answer", new(script).create().done(Pause).unknown(Resume, 0).get(paused, 0, 1).get(running, 0, 1), true},
		{"a request without an answer resumes", new(script).create().done(Pause).unknown(AddFile, 1).get(running, 0, 1), true},

		{"rolled back", new(script).create().memory(1, " 1").take("s").memory(2, " 1 2").back("s").memory(3, " 1 3").get(running, 0, 2), true},
		{"rolled back, and the timeline does not grow", new(script).create().take("s").back("s").get(running, 0, 1), false},
		{"rolled back, and memory stays", new(script).create().take("s").memory(1, " 1").back("s").memory(2, " 1 2"), false},
		{"rolled back, and the file stays", new(script).create().file(1, " 1").take("s").file(2, " 1 2").back("s").file(3, " 1 2 3"), false},
		{"paused while it is rolled back", new(script).create().take("s").back("s").during(1).get(paused, 0, 1).get(running, 0, 2), true},
		{"a rollback that is undone, seen meanwhile", new(script).create().take("s").unknownBack("s").get("resuming", 0, 1).get(paused, 0, 1), true},
		{"a rollback that is undone, and it was in the next timeline", new(script).create().take("s").unknownBack("s").get("resuming", 0, 2).get(paused, 0, 1), false},
		{"a rollback that is undone reached the outside", new(script).create().memory(1, " 1").take("s").memory(2, " 1 2").unknownBack("s").beat(" 1").get(paused, 0, 1).memory(3, " 1 2 3"), true},
		{"a rollback that is undone reached the outside with another list", new(script).create().memory(1, " 1").take("s").memory(2, " 1 2").unknownBack("s").beat(""), false},
		{"a rollback that is undone keeps running", new(script).create().memory(1, " 1").take("s").memory(2, " 1 2").unknownBack("s").beat(" 1").memory(3, " 1 2 3").beat(" 1"), false},
		{"paused after a resume without an answer, and it reaches the outside", new(script).create().done(Pause).unknown(Resume, 0).done(Resume).done(Pause).beat("").get(paused, 0, 1), false},
		{"no rollback, and the outside hears of the snapshot", new(script).create().memory(1, " 1").take("s").memory(2, " 1 2").beat(" 1"), false},
		{"a resume that is undone reached the outside", new(script).create().memory(1, " 1").done(Pause).unknown(Resume, 0).beat(" 1").get(paused, 0, 1).memory(2, " 1 2"), true},
		{"rolled back to an unknown snapshot", new(script).create().back("s"), false},
		{"a rollback without an answer", new(script).create().take("s").memory(1, " 1").unknownBack("s").memory(2, " 1 2").memory(3, " 3").get(running, 0, 2), true},

		{"lost and back", new(script).create().memory(1, " 1").take("s").memory(2, " 1 2").done(Loss).get(paused, 0, 2).memory(3, " 1 3"), true},
		{"not lost", new(script).create().take("s").memory(1, " 1").done(Loss).memory(2, " 1 2").get(running, 0, 1), true},
		{"a loss without a fault", new(script).create().memory(1, " 1").take("s").memory(2, " 1 2").get(paused, 0, 2).memory(3, " 1 3"), false},
		{"lost, and the timeline does not grow", new(script).create().memory(1, " 1").take("s").memory(2, " 1 2").done(Loss).memory(3, " 1 3").get(running, 0, 1), false},
		{"lost, and back before the last checkpoint", new(script).create().take("s").memory(1, " 1").take("s2").memory(2, " 1 2").done(Loss).memory(3, " 3").get(running, 0, 2), false},
		{"lost, and back in a checkpoint without an answer", new(script).create().take("s").memory(1, " 1").unknown(Take, 0).memory(2, " 1 2").done(Loss).memory(3, " 1 3").get(running, 0, 2), true},
		{"lost, and back in the memory of one checkpoint and the file of another", new(script).create().memory(1, " 1").take("s").memory(2, " 1 2").file(3, " 3").done(Loss).memory(4, " 1 4").file(5, " 3 5").get(running, 0, 2), false},
		{"a pause is a checkpoint", new(script).create().take("s").memory(1, " 1").done(Pause).done(Resume).memory(2, " 1 2").done(Loss).memory(3, " 1 3").get(running, 0, 2), true},
		{"what is paused is not lost", new(script).create().take("s").memory(1, " 1").done(Pause).done(Loss).get(paused, 0, 2), false},
		{"one loss goes back once", new(script).create().take("s").memory(1, " 1").done(Loss).memory(2, " 2").memory(3, " 3").get(running, 0, 3), false},
		{"lost without a checkpoint", new(script).create().memory(1, " 1").done(Loss).gone(AddMemory).get(ended, 0, 1), true},
		{"lost with a checkpoint, and it ends", new(script).create().take("s").done(Loss).gone(AddMemory), false},

		{"two boots", new(script).create().memory(1, " 1").take("s").memory(2, " 1 2").done(Loss).memory(3, " 1 3").memory(4, " 1 2 4"), false},
		{"the boot from before reaches the outside", new(script).create().memory(1, " 1").take("s").memory(2, " 1 2").done(Loss).memory(3, " 1 3").beat(" 1 2"), false},
		{"a call that began before the loss", new(script).create().memory(1, " 1").take("s").beat(" 1").during(2).done(Loss).memory(3, " 1 3"), true},
		{"a paused one reaches the outside", new(script).create().done(Pause).beat(""), false},

		{"a request resumes before its effect", new(script).create().memory(1, " 1").done(Pause).memory(2, " 1 2").during(1).beat(" 1").get(running, 0, 1), true},

		{"deleted", new(script).create().done(Delete).get(ended, 0, 1).gone(AddFile), true},
		{"deleted, and it answers", new(script).create().done(Delete).memory(1, " 1"), false},
		{"ended unasked", new(script).create().gone(ReadFile), false},
		{"a delete without an answer", new(script).create().unknown(Delete, 0).memory(1, " 1").gone(AddFile), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Check(tt.s.all, time.Minute)
			if len(got) != 1 || (got[0].Result == porcupine.Ok) != tt.legal || got[0].Result == porcupine.Unknown {
				t.Errorf("the verdict is %+v, want legal %v", got, tt.legal)
			}
		})
	}
}

// Each Sandbox is judged by itself, and an illegal history can be looked at.
func TestDraw(t *testing.T) {
	good, bad := new(script).create().memory(1, " 1"), new(script).create().memory(2, " 1 2")
	for i := range bad.all {
		bad.all[i].In.Sandbox = "other"
	}
	got := Check(append(good.all, bad.all...), time.Minute)
	if len(got) != 2 || got[0].Result != porcupine.Ok || got[1].Result != porcupine.Illegal {
		t.Fatalf("the verdicts are %+v", got)
	}
	if o := got[1].Contradiction(append(good.all, bad.all...)); o.In.ID != 2 {
		t.Errorf("the contradiction is %s", o)
	}
	path := filepath.Join(t.TempDir(), "history.html")
	if err := got[1].Draw(path); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(raw), "add to memory 2") {
		t.Errorf("the drawing has %d bytes, %v", len(raw), err)
	}
}

// Many concurrent clients without answers do not make the check slow.
func TestCheckIsQuick(t *testing.T) {
	s := new(script).create().take("s")
	list := ""
	for id := 1; id < 400; id++ {
		if id%3 == 0 {
			s.unknown(AddMemory, id)
			if id%2 == 0 {
				continue
			}
			list = listOf(list, id)
			continue
		}
		list = listOf(list, id)
		s.memory(id, list).during(2)
		if id%50 == 0 {
			s.unknown(Pause, 0).done(Loss)
		}
	}
	began := time.Now()
	if got := Check(s.all, time.Minute); got[0].Result != porcupine.Ok {
		t.Errorf("the verdict after %v: %s", time.Since(began), got[0].Result)
	}
}
