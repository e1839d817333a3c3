// Command publish writes the main rows of a benchmark report into the table of a README,
// and the whole report to report.md. Both come from the report.json of a folder:
// "publish README.md docs/benchmarks".
package main

import (
	"fmt"
	"os"

	"github.com/cloud-sandbox/cloud-sandbox/tests/perf"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: publish README FOLDER")
		os.Exit(2)
	}
	if err := perf.Publish(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "publish:", err)
		os.Exit(1)
	}
}
