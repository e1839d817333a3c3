// Command program is what a test looks for functions in.
package main

import "fmt"

func main() { fmt.Println("hello") }
